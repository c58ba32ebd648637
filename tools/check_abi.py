#!/usr/bin/env python3
"""Compares our declarations of the PJRT and FFI C ABIs with the tables of the PyPI package `pypjrt`.

    tools/check_abi.py [--cxx g++]

Parses src/pjrt/c_api.h and src/pjrt/ffi_api.h (simple on purpose), lets the compiler print the size and offset of
every struct and field and the value of every enumerator in them, and compares. Every struct that we declare must be
known to pypjrt, with the same fields at the same places; every slot of the function tables must be where pypjrt has
it. Exit code 0: all equal. Needs pypjrt in this Python and a C++ compiler.
"""
import argparse
import ctypes
import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEADERS = ["src/pjrt/c_api.h", "src/pjrt/ffi_api.h"]

def newest_tables():
    import pypjrt._abi as abi
    names = sorted(m.name for m in pkgutil.iter_modules(abi.__path__) if re.fullmatch(r"pjrt_\d+_\d+", m.name))
    if not names:
        sys.exit("check_abi: the installed pypjrt has no ABI tables")
    return importlib.import_module("pypjrt._abi." + max(names, key=lambda n: [int(x) for x in n.split("_")[1:]]))


def strip_comments(text):
    return re.sub(r"//[^\n]*", "", text)


def parse_structs(text):
    """{struct: [field]} with the members of anonymous unions among the fields."""
    structs = {}
    for match in re.finditer(r"^struct (\w+) \{\n(.*?)^\};", text, re.S | re.M):
        body = re.sub(r"union \{(.*?)\};", r"\1", match[2], flags=re.S)
        fields = []
        for declaration in body.split(";"):
            declaration = declaration.strip()
            if not declaration:
                continue
            function = re.search(r"\(\*(\w+)\)\s*\(", declaration)
            fields.append(function[1] if function else re.search(r"(\w+)$", declaration)[1])
        structs[match[1]] = fields
    return structs


def parse_enumerators(text):
    names = []
    for match in re.finditer(r"^enum (\w+) : unsigned \{(.*?)\};", text, re.S | re.M):
        names += re.findall(r"(\w+) = \d+", match[2])
    return names


def measure(cxx, structs, enumerators):
    lines = ['#include "pjrt/c_api.h"', '#include "pjrt/ffi_api.h"', "#include <cstdio>",
             "using namespace landbridge::pjrt;", "int main() {", '  std::printf("{\\"structs\\": {");']
    for i, (name, fields) in enumerate(structs.items()):
        comma = "" if i == 0 else ", "
        lines.append(f'  std::printf("{comma}\\"{name}\\": {{\\"#size\\": %zu", sizeof({name}));')
        for field in fields:
            lines.append(f'  std::printf(", \\"{field}\\": %zu", offsetof({name}, {field}));')
        lines.append('  std::printf("}");')
    lines.append('  std::printf("}, \\"enumerators\\": {");')
    for i, name in enumerate(enumerators):
        comma = "" if i == 0 else ", "
        lines.append(f'  std::printf("{comma}\\"{name}\\": %u", static_cast<unsigned>({name}));')
    lines += ['  std::printf("}}\\n");', "}"]
    with tempfile.TemporaryDirectory() as folder:
        source, binary = os.path.join(folder, "abi.cc"), os.path.join(folder, "abi")
        with open(source, "w") as file:
            file.write("\n".join(lines))
        subprocess.run([cxx, "-std=c++20", "-Wno-invalid-offsetof", "-I", os.path.join(ROOT, "src"), source, "-o", binary],
                       check=True)
        return json.loads(subprocess.run([binary], check=True, capture_output=True, text=True).stdout)


def their_offset(cls, field):
    """Offset of a field, looking into unnamed unions."""
    if hasattr(cls, field):
        return getattr(cls, field).offset
    for name, kind, *_ in cls._fields_:
        if name.startswith("_anon") and hasattr(kind, field):
            return getattr(cls, name).offset + getattr(kind, field).offset
    return None


def their_field_count(cls):
    return sum(len(kind._fields_) if name.startswith("_anon") else 1 for name, kind, *_ in cls._fields_)


def compare(tables, structs, ours):
    wrong = []
    for name, fields in structs.items():
        cls = getattr(tables, name, None)
        size = ours["structs"][name]["#size"]
        if name == "PJRT_Api":
            for field in fields[3:]:
                slot = tables.SLOT.get(field)
                offset = ours["structs"][name][field]
                if slot is None or tables.VTABLE_OFFSET + 8 * slot != offset:
                    wrong.append(f"PJRT_Api.{field} is at {offset}, pypjrt has slot {slot}")
            if size != tables.PJRT_Api_STRUCT_SIZE:
                wrong.append(f"PJRT_Api has {size} bytes, pypjrt says {tables.PJRT_Api_STRUCT_SIZE}")
            continue
        if cls is None:
            wrong.append(f"{name} is unknown to pypjrt")
            continue
        if size != ctypes.sizeof(cls):
            wrong.append(f"{name} has {size} bytes, pypjrt says {ctypes.sizeof(cls)}")
        if len(fields) != their_field_count(cls):
            wrong.append(f"{name} has {len(fields)} fields, pypjrt has {their_field_count(cls)}")
        for field in fields:
            offset = their_offset(cls, field)
            if offset != ours["structs"][name][field]:
                wrong.append(f"{name}.{field} is at {ours['structs'][name][field]}, pypjrt says {offset}")
    for name, value in ours["enumerators"].items():
        if getattr(tables, name, None) != value:
            wrong.append(f"{name} is {value}, pypjrt says {getattr(tables, name, None)}")
    return wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cxx", default=os.environ.get("CXX", "c++"))
    arguments = parser.parse_args()
    structs, enumerators = {}, []
    for header in HEADERS:
        with open(os.path.join(ROOT, header)) as file:
            text = strip_comments(file.read())
        structs.update(parse_structs(text))
        enumerators += parse_enumerators(text)
    tables = newest_tables()
    ours = measure(arguments.cxx, structs, enumerators)
    wrong = compare(tables, structs, ours)
    for line in wrong:
        print("check_abi:", line)
    fields = sum(len(f) for f in structs.values())
    print(f"check_abi: {len(structs)} structs, {fields} fields, {len(enumerators)} enumerators compared with pypjrt's "
          f"PJRT {tables.PJRT_API_MAJOR}.{tables.PJRT_API_MINOR}, FFI {tables.XLA_FFI_API_MAJOR}.{tables.XLA_FFI_API_MINOR}: "
          f"{len(wrong)} differences")
    return 1 if wrong or len(structs) < 80 or fields < 500 else 0


if __name__ == "__main__":
    sys.exit(main())
