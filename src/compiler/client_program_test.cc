#include "compiler/client_program.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/hmac.h"
#include "base/sha256.h"
#include "compiler/cache_entry.h"
#include "compiler/options.h"

namespace landbridge {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

CompileKey SomeEnvironment() {
  CompileKey key;
  key.set_plugin_sha256(std::string(64, 'a'));
  key.set_compiler_sha256(std::string(64, 'b'));
  key.set_cpu_model("Some CPU");
  key.set_cpu_features("avx avx2");
  key.set_envelope_format_version(2);
  return key;
}

ExecutableInfo SomeInfo() {
  ExecutableInfo info;
  info.set_name("jit_f");
  info.set_num_devices(2);
  return info;
}

std::string Message(const absl::StatusOr<ReturnedProgram>& opened) {
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(opened.status().message());
}

class ClientProgramTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/client_program_test.XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    ::unlink(file().c_str());
    ::rmdir(folder_.c_str());
  }
  std::string file() const { return folder_ + "/seal.key"; }

  const std::string secret_ = RandomSealSecret();
  const ClientProgramSeal seal_{secret_, SomeEnvironment()};
  std::string folder_;
};

TEST_F(ClientProgramTest, OpensWhatItSealed) {
  const absl::StatusOr<std::string> sealed = seal_.Seal(SomeInfo(), "native code", {4, 1});
  ASSERT_TRUE(sealed.ok()) << sealed.status();
  EXPECT_EQ(*sealed, *seal_.Seal(SomeInfo(), "native code", {4, 1}));  // JAX can be told to compare
  const absl::StatusOr<ReturnedProgram> opened =
      ClientProgramSeal(secret_, SomeEnvironment()).Open(*sealed);  // another process
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->program->info.name(), "jit_f");
  EXPECT_EQ(opened->program->envelope, "native code");
  EXPECT_EQ(opened->program->envelope_sha256, Sha256Raw("native code"));
  EXPECT_THAT(opened->device_ids, ElementsAre(4, 1));
}

TEST_F(ClientProgramTest, RefusesEveryOtherBit) {
  const std::string sealed = *seal_.Seal(SomeInfo(), "native code", {0});
  for (size_t i = 0; i < sealed.size(); ++i) {
    std::string bad = sealed;
    bad[i] ^= 1;
    EXPECT_FALSE(seal_.Open(bad).ok()) << i;
    EXPECT_FALSE(seal_.Open(sealed.substr(0, i)).ok()) << i;
  }
  EXPECT_THAT(Message(seal_.Open("")), HasSubstr("it is none of Landbridge's"));
  std::string flipped = sealed;
  flipped.back() ^= 1;
  EXPECT_THAT(Message(seal_.Open(flipped)), HasSubstr("corrupt"));
}

TEST_F(ClientProgramTest, RefusesWhatOthersMade) {
  // The attacker knows everything but the secret.
  const ClientProgramSeal other(RandomSealSecret(), SomeEnvironment());
  const std::string theirs = *other.Seal(SomeInfo(), "their code", {0});
  EXPECT_THAT(Message(seal_.Open(theirs)), HasSubstr("a server with another compile cache made it"));
  ClientProgram ours, forged;
  ASSERT_TRUE(ours.ParseFromString(*seal_.Seal(SomeInfo(), "native code", {0})));
  ASSERT_TRUE(forged.ParseFromString(theirs));
  forged.set_key_id(ours.key_id());
  EXPECT_THAT(Message(seal_.Open(forged.SerializeAsString())), HasSubstr("seal does not match"));
  forged.set_tag(Sha256Raw(forged.body()));
  EXPECT_THAT(Message(seal_.Open(forged.SerializeAsString())), HasSubstr("seal does not match"));
  forged.clear_tag();
  EXPECT_THAT(Message(seal_.Open(forged.SerializeAsString())), HasSubstr("seal does not match"));
  forged.set_tag(ours.tag());
  EXPECT_THAT(Message(seal_.Open(forged.SerializeAsString())), HasSubstr("seal does not match"));
  ours.set_format_version(99);
  EXPECT_THAT(Message(seal_.Open(ours.SerializeAsString())), HasSubstr("it has format 99, this server reads 1"));
}

TEST_F(ClientProgramTest, RefusesWhatThisServerCannotRunAnyMore) {
  const std::string sealed = *seal_.Seal(SomeInfo(), "native code", {0});
  CompileKey plugin = SomeEnvironment(), cpu = SomeEnvironment(), compiler = SomeEnvironment();
  plugin.set_plugin_sha256(std::string(64, 'c'));
  cpu.set_cpu_features("avx");
  compiler.set_compiler_sha256(std::string(64, 'd'));
  EXPECT_THAT(Message(ClientProgramSeal(secret_, plugin).Open(sealed)), HasSubstr("another build of the plugin"));
  EXPECT_THAT(Message(ClientProgramSeal(secret_, cpu).Open(sealed)), HasSubstr("another CPU"));
  EXPECT_THAT(Message(ClientProgramSeal(secret_, compiler).Open(sealed)),
              HasSubstr("another build of landbridge-compiler"));
  // So clients do not even try: names differ.
  std::set<std::string> names = {seal_.name(), ClientProgramSeal(secret_, plugin).name(),
                                 ClientProgramSeal(secret_, cpu).name(), ClientProgramSeal(secret_, compiler).name(),
                                 ClientProgramSeal(RandomSealSecret(), SomeEnvironment()).name()};
  EXPECT_EQ(names.size(), 5u);
  EXPECT_EQ(seal_.name(), ClientProgramSeal(secret_, SomeEnvironment()).name());
}

TEST_F(ClientProgramTest, DoesNotSealWhatCallsItsClient) {
  ExecutableInfo info = SomeInfo();
  info.set_calls_host(true);
  const absl::Status status = seal_.Seal(info, "native code", {0}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("jit_f calls Python functions"));
}

TEST_F(ClientProgramTest, AllWhoUseAFolderShareASecret) {
  std::vector<std::thread> threads;
  std::vector<std::string> secrets(8);
  for (std::string& secret : secrets) {
    threads.emplace_back([&secret, this] {
      absl::StatusOr<std::string> shared = SharedSealSecret(folder_);
      ASSERT_TRUE(shared.ok()) << shared.status();
      secret = *std::move(shared);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(secrets[0].size(), kSealSecretBytes);
  EXPECT_EQ(std::set<std::string>(secrets.begin(), secrets.end()).size(), 1u);
  struct stat info;
  ASSERT_EQ(::stat(file().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
  EXPECT_NE(RandomSealSecret(), RandomSealSecret());
}

TEST_F(ClientProgramTest, RefusesASecretThatOthersCanRead) {
  ASSERT_TRUE(SharedSealSecret(folder_).ok());
  ASSERT_EQ(::chmod(file().c_str(), 0640), 0);
  EXPECT_THAT(std::string(SharedSealSecret(folder_).status().message()), HasSubstr("others may read it"));
  ASSERT_EQ(::chmod(file().c_str(), 0600), 0);
  ASSERT_EQ(::truncate(file().c_str(), 5), 0);
  EXPECT_THAT(std::string(SharedSealSecret(folder_).status().message()), HasSubstr("it has 5 bytes"));
  ASSERT_EQ(::chmod(folder_.c_str(), 0777), 0);
  EXPECT_THAT(std::string(SharedSealSecret(folder_).status().message()), HasSubstr("others may write to it"));
}

}  // namespace
}  // namespace landbridge
