#include "collectives/collective_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "collectives/engine_test_util.h"
#include "collectives/group_layout.h"
#include "collectives/outgoing.h"
#include "collectives/reduce.h"

namespace landbridge {
namespace {

using Bytes = std::vector<std::vector<std::string>>;  // [device][operand]

// One collective over 8 devices.
struct Case {
  CollectiveOp::Kind kind;
  std::vector<std::vector<int32_t>> groups;
  std::vector<int64_t> elements;  // of each operand
  DType dtype = DType::kF32;
  CollectiveOp::Reduction reduction = CollectiveOp::NONE;
  std::vector<std::pair<int, int>> pairs = {};
};

constexpr int kDevices = 8;

CollectiveTable TableOf(const Case& c) {
  CollectiveTable table;
  table.set_num_replicas(1);
  table.set_num_partitions(kDevices);
  CollectiveGroups* groups = table.add_groups();
  for (const auto& group : c.groups) groups->add_groups()->mutable_members()->Add(group.begin(), group.end());
  CollectiveOp* op = table.add_ops();
  op->set_kind(c.kind);
  op->set_reduction(c.reduction);
  op->set_name("collective.1");
  for (auto [source, target] : c.pairs) {
    op->add_pairs()->set_source(source);
    op->mutable_pairs(op->pairs_size() - 1)->set_target(target);
  }
  const auto members = static_cast<int64_t>(c.groups[0].size());
  for (int64_t elements : c.elements) {
    auto* operand = op->add_operands();
    auto* result = op->add_results();
    for (auto* tensor : {operand, result}) tensor->set_dtype(static_cast<int32_t>(c.dtype));
    operand->set_elements(elements);
    result->set_elements(c.kind == CollectiveOp::ALL_GATHER       ? elements * members
                         : c.kind == CollectiveOp::REDUCE_SCATTER ? elements / members
                                                                  : elements);
  }
  return table;
}

std::shared_ptr<const CollectiveProgram> ProgramOf(const Case& c) {
  auto program = CollectiveProgram::Make(TableOf(c));
  LB_CHECK(program.ok());
  return *program;
}

Bytes RandomOperands(const CollectiveStep& step, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 1000);
  Bytes operands(kDevices);
  for (auto& device : operands) {
    for (const CollectiveTensor& tensor : step.operands) {
      std::string bytes(static_cast<size_t>(tensor.bytes), '\0');
      if (tensor.dtype == DType::kF32) {
        for (int64_t i = 0; i < tensor.elements; ++i) {
          const float value = normal(random);
          std::memcpy(bytes.data() + i * 4, &value, 4);
        }
      } else {
        for (char& byte : bytes) byte = static_cast<char>(random());
      }
      device.push_back(std::move(bytes));
    }
  }
  return operands;
}

const std::byte* Data(const std::string& bytes) { return reinterpret_cast<const std::byte*>(bytes.data()); }

// What must come out, worked out in the plainest way.
Bytes Expected(const Case& c, const CollectiveStep& step, const Bytes& operands) {
  Bytes results(kDevices);
  auto at = [](Bytes& bytes, int device) -> std::vector<std::string>& { return bytes[static_cast<size_t>(device)]; };
  if (c.kind == CollectiveOp::COLLECTIVE_PERMUTE) {
    for (int d = 0; d < kDevices; ++d) {
      for (const auto& tensor : step.results) at(results, d).emplace_back(static_cast<size_t>(tensor.bytes), '\0');
    }
    for (auto [source, target] : c.pairs) at(results, target) = operands[static_cast<size_t>(source)];
    return results;
  }
  for (const auto& group : c.groups) {
    for (size_t rank = 0; rank < group.size(); ++rank) {
      std::vector<std::string>& out = at(results, group[rank]);
      for (size_t i = 0; i < step.operands.size(); ++i) {
        const CollectiveTensor& tensor = step.operands[i];
        auto operand = [&](size_t r, size_t index) -> const std::string& {
          return operands[static_cast<size_t>(group[r])][index];
        };
        std::string value;
        if (c.kind == CollectiveOp::ALL_GATHER) {
          for (size_t r = 0; r < group.size(); ++r) value += operand(r, i);
        } else if (c.kind == CollectiveOp::ALL_TO_ALL) {
          if (step.operands.size() == group.size()) {
            value = operand(i, rank);
          } else {
            const size_t piece = static_cast<size_t>(tensor.bytes) / group.size();
            for (size_t r = 0; r < group.size(); ++r) value += operand(r, 0).substr(rank * piece, piece);
          }
        } else {
          std::string whole(static_cast<size_t>(tensor.bytes), '\0');
          ReduceTree(static_cast<int>(group.size()), tensor.dtype, c.reduction, tensor.elements,
                     reinterpret_cast<std::byte*>(whole.data()), [&](int first, int count) {
                       return count == 1 ? Data(operand(static_cast<size_t>(first), i)) : nullptr;
                     });
          const auto bytes = static_cast<size_t>(step.results[i].bytes);
          value = c.kind == CollectiveOp::REDUCE_SCATTER ? whole.substr(rank * bytes, bytes) : whole;
        }
        out.push_back(std::move(value));
      }
    }
  }
  return results;
}

const std::vector<std::vector<int>> kPlacements = {
    {0, 0, 0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 1, 1, 1, 1}, {0, 0, 1, 1, 2, 2, 3, 3},
    {0, 1, 2, 3, 4, 5, 6, 7}, {2, 0, 1, 1, 0, 2, 0, 1},
};

struct OverSlices {
  std::vector<int> worker_of_device;
  std::vector<uint32_t> slice_of_worker;
};

// Slices of four neighbours: the tree over slices and that over ranks are the same.
const std::vector<OverSlices> kHalvesInSlices = {
    {{0, 0, 0, 0, 1, 1, 1, 1}, {3, 1}},
    {{0, 0, 1, 1, 2, 2, 3, 3}, {0, 0, 1, 1}},
    {{0, 1, 2, 3, 4, 5, 6, 7}, {5, 5, 5, 5, 2, 2, 2, 2}},
    {{0, 0, 0, 0, 1, 2, 3, 3}, {0, 1, 1, 1}},
};
const std::vector<OverSlices> kAnySlices = {
    {{2, 0, 1, 1, 0, 2, 0, 1}, {0, 1, 0}},       {{0, 1, 2, 3, 4, 5, 6, 7}, {0, 1, 2, 0, 1, 2, 0, 0}},
    {{0, 1, 2, 3, 0, 1, 2, 3}, {5, 5, 9, 9}},    {{0, 1, 2, 3, 4, 5, 6, 7}, {0, 0, 1, 1, 2, 2, 3, 3}},
    {{0, 1, 2, 3, 4, 4, 4, 4}, {0, 0, 0, 1, 2}}, {{0, 1, 0, 1, 0, 1, 0, 1}, {0, 1}},
};

void CheckAt(const Case& c, const std::vector<OverSlices>& places) {
  const auto program = ProgramOf(c);
  const CollectiveStep& step = program->steps()[0];
  Bytes operands = RandomOperands(step, 5);
  const Bytes expected = Expected(c, step, operands);
  for (const OverSlices& place : places) {
    const std::vector<int>& placement = place.worker_of_device;
    TestWorkers workers(program, placement, 77, {}, place.slice_of_worker);
    for (int round = 0; round < 2; ++round) {  // the second is another occurrence
      std::vector<absl::Status> statuses;
      const Bytes results = workers.CallAll(0, operands, &statuses);
      for (int d = 0; d < kDevices; ++d) {
        EXPECT_TRUE(statuses[static_cast<size_t>(d)].ok()) << statuses[static_cast<size_t>(d)];
        EXPECT_TRUE(results[static_cast<size_t>(d)] == expected[static_cast<size_t>(d)])
            << "kind " << c.kind << " device " << d << " on worker " << placement[static_cast<size_t>(d)] << " round "
            << round;
      }
    }
    for (int w = 0; w < workers.workers(); ++w) {
      for (int wait = 0; wait < 5000 && workers.run(w)->pending() != 0; ++wait) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      EXPECT_EQ(workers.run(w)->pending(), 0);
    }
  }
}

void CheckEverywhere(const Case& c) {
  std::vector<OverSlices> places;
  for (const auto& placement : kPlacements) places.push_back({placement, {}});
  CheckAt(c, places);
}

const std::vector<std::vector<int32_t>> kAll = {{0, 1, 2, 3, 4, 5, 6, 7}};
const std::vector<std::vector<int32_t>> kUnequal = {{6, 0}, {1, 3, 5, 7, 2}, {4}};
const std::vector<std::vector<int32_t>> kHalves = {{4, 2, 6, 0}, {1, 3, 5, 7}};

TEST(CollectiveEngine, AllReduceSmall) {
  CheckEverywhere({CollectiveOp::ALL_REDUCE, kAll, {1}, DType::kF32, CollectiveOp::SUM});
  CheckEverywhere({CollectiveOp::ALL_REDUCE, kHalves, {100, 0, 33}, DType::kF32, CollectiveOp::SUM});
  CheckEverywhere({CollectiveOp::ALL_REDUCE, kAll, {77}, DType::kS4, CollectiveOp::MAXIMUM});
  CheckEverywhere({CollectiveOp::ALL_REDUCE, kUnequal, {5}, DType::kF32, CollectiveOp::SUM});
}

TEST(CollectiveEngine, AllReduceLarge) {
  CheckEverywhere({CollectiveOp::ALL_REDUCE, kAll, {1'000'003}, DType::kF32, CollectiveOp::SUM});
  CheckEverywhere({CollectiveOp::ALL_REDUCE, kHalves, {50'000, 3, 20'000}, DType::kF32, CollectiveOp::PRODUCT});
  CheckEverywhere({CollectiveOp::ALL_REDUCE, kHalves, {100'001}, DType::kS4, CollectiveOp::SUM});
  CheckEverywhere({CollectiveOp::ALL_REDUCE, kUnequal, {100'001}, DType::kF32, CollectiveOp::SUM});
}

TEST(CollectiveEngine, ReduceScatter) {
  CheckEverywhere({CollectiveOp::REDUCE_SCATTER, kAll, {80}, DType::kF32, CollectiveOp::SUM});
  CheckEverywhere({CollectiveOp::REDUCE_SCATTER, kHalves, {400'000, 8}, DType::kF32, CollectiveOp::SUM});
}

TEST(CollectiveEngine, AllGather) {
  CheckEverywhere({CollectiveOp::ALL_GATHER, kAll, {3}});
  CheckEverywhere({CollectiveOp::ALL_GATHER, kHalves, {100'000, 2}});
}

TEST(CollectiveEngine, AllToAll) {
  CheckEverywhere({CollectiveOp::ALL_TO_ALL, kHalves, {5, 5, 5, 5}});
  CheckEverywhere({CollectiveOp::ALL_TO_ALL, kHalves, {50'000, 50'000, 50'000, 50'000}});
  CheckEverywhere({CollectiveOp::ALL_TO_ALL, kAll, {80'000}});
}

TEST(CollectiveEngine, Permute) {
  CheckEverywhere({CollectiveOp::COLLECTIVE_PERMUTE,
                   kAll,
                   {10},
                   DType::kF32,
                   CollectiveOp::NONE,
                   {{0, 1}, {1, 0}, {5, 5}, {6, 2}}});
  CheckEverywhere(
      {CollectiveOp::COLLECTIVE_PERMUTE, kAll, {60'000}, DType::kF32, CollectiveOp::NONE, {{0, 7}, {7, 0}, {3, 4}}});
}

TEST(CollectiveEngine, LargeReductionsMoveAsFewBytesAsPossible) {
  const Case c{CollectiveOp::ALL_REDUCE, kAll, {1 << 20}, DType::kF32, CollectiveOp::SUM};
  TestWorkers workers(ProgramOf(c), kPlacements[2]);  // 4 workers of 2
  Bytes operands = RandomOperands(workers.program().steps()[0], 1);
  std::vector<absl::Status> statuses;
  workers.CallAll(0, operands, &statuses);
  for (int w = 0; w < 4; ++w) {
    EXPECT_EQ(workers.plane(w).Stats().bytes_received, 2u * 3 * (4u << 20) / 4) << w;  // 2 n (k - 1) / k
  }
}

TEST(CollectiveEngine, ReductionsOverSlices) {
  for (const auto& groups : {kAll, kHalves, kUnequal}) {
    for (const std::vector<int64_t>& elements : {std::vector<int64_t>{3}, {1'000'003}, {50'000, 3, 0, 20'000}}) {
      const Case c{CollectiveOp::ALL_REDUCE, groups, elements, DType::kS32, CollectiveOp::SUM};
      CheckAt(c, kHalvesInSlices);
      CheckAt(c, kAnySlices);
    }
  }
  const Case packed{CollectiveOp::ALL_REDUCE, kAll, {100'001}, DType::kS4, CollectiveOp::SUM};
  CheckAt(packed, kHalvesInSlices);
  CheckAt(packed, kAnySlices);
  for (const auto& groups : {kAll, kHalves}) {
    const Case c{CollectiveOp::REDUCE_SCATTER, groups, {1'200'000, 8}, DType::kS32, CollectiveOp::SUM};
    CheckAt(c, kHalvesInSlices);
    CheckAt(c, kAnySlices);
  }
  CheckAt({CollectiveOp::ALL_REDUCE, kAll, {1'000'003}, DType::kF32, CollectiveOp::SUM}, kHalvesInSlices);
  CheckAt({CollectiveOp::REDUCE_SCATTER, kAll, {80'000}, DType::kF32, CollectiveOp::SUM}, kHalvesInSlices);
}

TEST(CollectiveEngine, MovesOverSlices) {
  for (const auto& places : {kHalvesInSlices, kAnySlices}) {
    CheckAt({CollectiveOp::ALL_GATHER, kAll, {3}}, places);
    CheckAt({CollectiveOp::ALL_GATHER, kHalves, {100'000, 2, 0}}, places);
    CheckAt({CollectiveOp::ALL_GATHER, kAll, {50'000}}, places);
    CheckAt({CollectiveOp::ALL_TO_ALL, kAll, {80'000}}, places);
  }
}

// Sums over slices are of an order of their own, always the same.
TEST(CollectiveEngine, SumsOverSlicesRepeat) {
  const Case c{CollectiveOp::ALL_REDUCE, kAll, {300'001}, DType::kF32, CollectiveOp::SUM};
  for (const OverSlices& place : kAnySlices) {
    TestWorkers workers(ProgramOf(c), place.worker_of_device, 77, {}, place.slice_of_worker);
    Bytes operands = RandomOperands(workers.program().steps()[0], 3);
    // By slice, in order of their first rank; then over them.
    std::vector<uint32_t> slices;
    std::vector<std::vector<const std::byte*>> values;
    for (size_t d = 0; d < kDevices; ++d) {
      const uint32_t slice = place.slice_of_worker[static_cast<size_t>(place.worker_of_device[d])];
      const auto at = static_cast<size_t>(std::find(slices.begin(), slices.end(), slice) - slices.begin());
      if (at == slices.size()) {
        slices.push_back(slice);
        values.emplace_back();
      }
      values[at].push_back(Data(operands[d][0]));
    }
    auto sum = [&](const std::vector<const std::byte*>& of) {
      std::string out(operands[0][0].size(), '\0');
      ReduceTree(static_cast<int>(of.size()), c.dtype, c.reduction, c.elements[0],
                 reinterpret_cast<std::byte*>(out.data()),
                 [&](int first, int count) { return count == 1 ? of[static_cast<size_t>(first)] : nullptr; });
      return out;
    };
    std::vector<std::string> sums;
    for (const auto& of_slice : values) sums.push_back(sum(of_slice));
    std::vector<const std::byte*> of_sums;
    for (const std::string& of_slice : sums) of_sums.push_back(Data(of_slice));
    const std::string expected = sum(of_sums);
    for (int round = 0; round < 3; ++round) {
      std::vector<absl::Status> statuses;
      for (const auto& result : workers.CallAll(0, operands, &statuses)) EXPECT_TRUE(result[0] == expected);
    }
  }
}

// Bytes that each slice sends to others, in order of their names.
std::vector<uint64_t> SentBetweenSlices(const Case& c, const OverSlices& place) {
  TestWorkers workers(ProgramOf(c), place.worker_of_device, 77, {}, place.slice_of_worker);
  Bytes operands = RandomOperands(workers.program().steps()[0], 1);
  std::vector<absl::Status> statuses;
  workers.CallAll(0, operands, &statuses);
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  std::map<uint32_t, uint64_t> sent;
  for (int from = 0; from < workers.workers(); ++from) {
    const uint32_t slice = place.slice_of_worker[static_cast<size_t>(from)];
    for (int to = 0; to < workers.workers(); ++to) {
      if (place.slice_of_worker[static_cast<size_t>(to)] == slice) continue;
      for (const dataplane::PeerBytes& peer : workers.plane(to).Stats().peers) {
        if (peer.peer == TestWorkers::Peer(from)) sent[slice] += peer.bytes_received;
      }
    }
  }
  std::vector<uint64_t> bytes;
  for (const auto& [slice, count] : sent) bytes.push_back(count);
  return bytes;
}

TEST(CollectiveEngine, WhatCrossesBetweenSlicesDoesSoOnce) {
  constexpr int64_t kElements = 3 << 15;
  constexpr uint64_t n = kElements * 4;
  const std::vector<OverSlices> places = {
      {{0, 0, 0, 0, 1, 1, 1, 1}, {0, 1}},
      {{0, 0, 1, 1, 2, 2, 3, 3}, {0, 0, 1, 1}},
      {{0, 1, 2, 3, 4, 5, 6, 7}, {0, 0, 0, 0, 1, 1, 1, 1}},
      {{0, 1, 2, 3, 4, 5, 6, 7}, {0, 0, 1, 1, 2, 2, 3, 3}},
      {{0, 1, 2, 3, 4, 5, 6, 7}, {0, 0, 0, 0, 0, 1, 1, 2}},
      {{2, 0, 1, 1, 0, 2, 0, 1}, {0, 1, 0}},
      {{0, 1, 0, 1, 0, 1, 0, 1}, {0, 1}},
  };
  for (const OverSlices& place : places) {
    std::map<uint32_t, uint64_t> ranks;
    for (int worker : place.worker_of_device) ++ranks[place.slice_of_worker[static_cast<size_t>(worker)]];
    const uint64_t k = ranks.size();
    const Case reduce{CollectiveOp::ALL_REDUCE, kAll, {kElements}, DType::kF32, CollectiveOp::SUM};
    EXPECT_THAT(SentBetweenSlices(reduce, place),
                testing::AllOf(testing::SizeIs(k), testing::Each(2 * n * (k - 1) / k)));
    // Of a reduce-scatter what others need of our sum, of an all-gather our values once for each other slice.
    std::vector<uint64_t> scattered, gathered;
    for (const auto& [slice, count] : ranks) {
      scattered.push_back(n / kDevices * (kDevices - count));
      gathered.push_back(n * count * (k - 1));
    }
    const Case scatter{CollectiveOp::REDUCE_SCATTER, kAll, {kElements}, DType::kF32, CollectiveOp::SUM};
    const Case gather{CollectiveOp::ALL_GATHER, kAll, {kElements}};
    EXPECT_EQ(SentBetweenSlices(scatter, place), scattered);
    EXPECT_EQ(SentBetweenSlices(gather, place), gathered);
  }
}

TEST(CollectiveEngine, AbortEndsCallsInAllSlices) {
  for (auto kind : {CollectiveOp::ALL_REDUCE, CollectiveOp::REDUCE_SCATTER, CollectiveOp::ALL_GATHER}) {
    const Case c{
        kind, kAll, {1 << 20}, DType::kF32, kind == CollectiveOp::ALL_GATHER ? CollectiveOp::NONE : CollectiveOp::SUM};
    TestWorkers workers(ProgramOf(c), {0, 0, 1, 1, 2, 2, 3, 3}, 77, {}, {0, 0, 1, 1});
    Bytes operands = RandomOperands(workers.program().steps()[0], 1);
    TestWorkers::Calls calls(workers, 0, operands, kDevices - 1);
    workers.run(3)->Abort(absl::DataLossError("device 7 went away"));
    calls.Wait();
    for (const absl::Status& status : calls.statuses) EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    for (int w = 0; w < workers.workers(); ++w) {
      for (int wait = 0; wait < 5000 && workers.run(w)->pending() != 0; ++wait) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      EXPECT_EQ(workers.run(w)->pending(), 0);
    }
  }
}

// The last device never calls; an abort on its worker ends all the others.
TEST(CollectiveEngine, AbortEndsCallsOnAllWorkers) {
  for (int64_t elements : {4, 1 << 20}) {
    const Case c{CollectiveOp::ALL_REDUCE, kAll, {elements}, DType::kF32, CollectiveOp::SUM};
    TestWorkers workers(ProgramOf(c), kPlacements[2]);
    Bytes operands = RandomOperands(workers.program().steps()[0], 1);
    TestWorkers::Calls calls(workers, 0, operands, kDevices - 1);
    workers.run(3)->Abort(absl::DataLossError("device 7 went away"));
    calls.Wait();
    for (const absl::Status& status : calls.statuses) {
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
      EXPECT_THAT(std::string(status.message()), testing::HasSubstr("device 7 went away"));
    }
    // A call that comes late ends at once; the next launch works.
    absl::BlockingCounter late(1);
    std::string result(static_cast<size_t>(elements) * 4, '\0');
    CollectiveCall call;
    call.device = 7;
    call.operands = {Data(operands[7][0])};
    call.results = {reinterpret_cast<std::byte*>(result.data())};
    call.done = [&](const absl::Status& done) {
      EXPECT_EQ(done.code(), absl::StatusCode::kDataLoss);
      late.DecrementCount();
    };
    workers.run(3)->Call(std::move(call));
    late.Wait();
    workers.Launch(78);
    std::vector<absl::Status> next;
    EXPECT_TRUE(workers.CallAll(0, operands, &next) == Expected(c, workers.program().steps()[0], operands));
    for (const absl::Status& status : next) EXPECT_TRUE(status.ok()) << status;
  }
}

// A reduction too large to be pushed that was called twice is asked for ahead: what nobody calls is taken back at the end, here and at peers.
TEST(CollectiveEngine, LoopsAskAheadAndTakeItBack) {
  const Case c{CollectiveOp::ALL_REDUCE, kAll, {3000}, DType::kF32, CollectiveOp::SUM};
  TestWorkers workers(ProgramOf(c), kPlacements[2]);
  auto open = [&] {
    uint64_t count = 0;
    for (int w = 0; w < workers.workers(); ++w) count += workers.plane(w).Stats().pulls_open;
    return count;
  };
  auto waiting = [&] {
    uint64_t count = 0;
    for (int w = 0; w < workers.workers(); ++w) count += workers.plane(w).Stats().reads_waiting;
    return count;
  };
  auto becomes = [](const std::function<uint64_t()>& count, uint64_t wanted) {
    for (int wait = 0; wait < 5000 && count() != wanted; ++wait) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return count() == wanted;
  };
  for (uint64_t space : {77, 78}) {
    if (space != 77) workers.Launch(space);
    for (uint32_t round = 0; round < 6; ++round) {
      const Bytes operands = RandomOperands(workers.program().steps()[0], round);
      std::vector<absl::Status> statuses;
      EXPECT_TRUE(workers.CallAll(0, operands, &statuses) == Expected(c, workers.program().steps()[0], operands));
      for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
      // From each of four workers the sums of three others.
      EXPECT_TRUE(becomes(open, round == 0 ? 0 : 12)) << round << ": " << open();
    }
    EXPECT_TRUE(becomes(waiting, 12)) << waiting();
    workers.Close();
    EXPECT_TRUE(becomes(open, 0)) << open();
    EXPECT_TRUE(becomes(waiting, 0)) << waiting();
    for (int w = 0; w < workers.workers(); ++w) {
      EXPECT_TRUE(workers.run(w)->status().ok()) << workers.run(w)->status();
      EXPECT_TRUE(becomes([&] { return static_cast<uint64_t>(workers.run(w)->pending()); }, 0));
    }
  }
}

TEST(CollectiveEngine, AbortEndsWhatWasAskedAhead) {
  const Case c{CollectiveOp::ALL_REDUCE, kAll, {3000}, DType::kF32, CollectiveOp::SUM};
  TestWorkers workers(ProgramOf(c), kPlacements[2]);
  const Bytes operands = RandomOperands(workers.program().steps()[0], 1);
  std::vector<absl::Status> statuses;
  for (int round = 0; round < 3; ++round) workers.CallAll(0, operands, &statuses);
  TestWorkers::Calls calls(workers, 0, operands, kDevices - 1);  // all but one member of the fourth
  workers.run(3)->Abort(absl::DataLossError("device 7 went away"));
  calls.Wait();
  for (const absl::Status& status : calls.statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  }
}

uint64_t Sum(TestWorkers& workers, uint64_t dataplane::DataPlaneStats::*count) {
  uint64_t sum = 0;
  for (int w = 0; w < workers.workers(); ++w) sum += workers.plane(w).Stats().*count;
  return sum;
}

bool Becomes(const std::function<uint64_t()>& count, uint64_t wanted) {
  for (int wait = 0; wait < 5000 && count() != wanted; ++wait) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return count() == wanted;
}

// Small values are sent before they are asked for: nothing is published or pulled, each goes once to each worker that needs
// it, and nothing is left behind.
TEST(CollectiveEngine, SmallValuesArePushedOnce) {
  constexpr uint64_t kRounds = 5;
  struct Pushed {
    Case c;
    uint64_t bytes;  // into each of four workers of two devices, a round
  };
  const std::vector<Pushed> all = {
      {{CollectiveOp::ALL_REDUCE, kAll, {3}, DType::kF32, CollectiveOp::SUM}, 3 * 64},  // sums of two, aligned
      {{CollectiveOp::ALL_REDUCE, kAll, {2000, 1}, DType::kF32, CollectiveOp::SUM}, 3 * (8000 + 64)},
      {{CollectiveOp::REDUCE_SCATTER, kAll, {16}, DType::kF32, CollectiveOp::SUM}, 3 * 64},
      {{CollectiveOp::ALL_GATHER, kAll, {3, 5}}, 6 * (12 + 20)},
      {{CollectiveOp::ALL_TO_ALL, kAll, {16}}, 6 * 2 * 8},
  };
  for (const Pushed& pushed : all) {
    TestWorkers workers(ProgramOf(pushed.c), kPlacements[2]);
    const CollectiveStep& step = workers.program().steps()[0];
    EXPECT_TRUE(step.pushed);
    for (uint32_t round = 0; round < kRounds; ++round) {
      const Bytes operands = RandomOperands(step, round);
      std::vector<absl::Status> statuses;
      EXPECT_TRUE(workers.CallAll(0, operands, &statuses) == Expected(pushed.c, step, operands)) << pushed.c.kind;
      for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
      EXPECT_EQ(Sum(workers, &dataplane::DataPlaneStats::pulls_open), 0u);
      EXPECT_EQ(Sum(workers, &dataplane::DataPlaneStats::keys_published), 0u);
    }
    for (int w = 0; w < 4; ++w) {
      EXPECT_EQ(workers.plane(w).Stats().bytes_received, kRounds * pushed.bytes) << pushed.c.kind << " " << w;
      EXPECT_EQ(workers.plane(w).Stats().bytes_sent, kRounds * pushed.bytes) << pushed.c.kind << " " << w;
    }
    workers.Close();
    for (auto count : {&dataplane::DataPlaneStats::push_outlets, &dataplane::DataPlaneStats::spaces_listening,
                       &dataplane::DataPlaneStats::pushes_waiting}) {
      EXPECT_TRUE(Becomes([&] { return Sum(workers, count); }, 0));
    }
    for (int w = 0; w < 4; ++w) EXPECT_EQ(workers.run(w)->pending(), 0);
  }
}

// What a program's first small collectives may bring before it is wanted is bounded; later ones are asked for.
TEST(CollectiveEngine, PushesOfAProgramAreBounded) {
  CollectiveTable table = TableOf({CollectiveOp::ALL_REDUCE, kAll, {2048}, DType::kF32, CollectiveOp::SUM});
  for (int i = 1; i < 70; ++i) *table.add_ops() = table.ops(0);
  const auto program = *CollectiveProgram::Make(table);
  int pushed = 0;
  for (const CollectiveStep& step : program->steps()) pushed += step.pushed ? 1 : 0;
  EXPECT_EQ(pushed, kCollectivePushedBytesMax / (8 * 8192));
  EXPECT_FALSE(program->steps()[69].pushed);
  EXPECT_FALSE(ProgramOf({CollectiveOp::ALL_REDUCE, kAll, {2049}, DType::kF32, CollectiveOp::SUM})->steps()[0].pushed);
  // Both ways in one launch.
  TestWorkers workers(program, kPlacements[1]);
  for (int op : {0, 69}) {
    const Bytes operands = RandomOperands(program->steps()[static_cast<size_t>(op)], 9);
    std::vector<absl::Status> statuses;
    const Case c{CollectiveOp::ALL_REDUCE, kAll, {2048}, DType::kF32, CollectiveOp::SUM};
    EXPECT_TRUE(workers.CallAll(op, operands, &statuses) == Expected(c, program->steps()[0], operands)) << op;
  }
}

// All but one member have called: what others sent waits for it, through an abort, which ends the calls.
TEST(CollectiveEngine, AbortEndsWhatWasPushed) {
  const Case c{CollectiveOp::ALL_REDUCE, kAll, {3}, DType::kF32, CollectiveOp::SUM};
  TestWorkers workers(ProgramOf(c), kPlacements[2]);
  const Bytes operands = RandomOperands(workers.program().steps()[0], 1);
  std::vector<absl::Status> statuses;
  for (int round = 0; round < 3; ++round) workers.CallAll(0, operands, &statuses);
  TestWorkers::Calls calls(workers, 0, operands, kDevices - 1);  // all but one member of the fourth
  EXPECT_TRUE(Becomes([&] { return workers.plane(3).Stats().bytes_received; }, 4 * 3 * 64));
  workers.run(3)->Abort(absl::DataLossError("device 7 went away"));
  calls.Wait();
  for (const absl::Status& status : calls.statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("device 7 went away"));
  }
  for (int w = 0; w < 4; ++w) {
    EXPECT_TRUE(Becomes([&] { return static_cast<uint64_t>(workers.run(w)->pending()); }, 0));
  }
  for (auto count : {&dataplane::DataPlaneStats::push_outlets, &dataplane::DataPlaneStats::spaces_listening,
                     &dataplane::DataPlaneStats::pushes_waiting}) {
    EXPECT_TRUE(Becomes([&] { return Sum(workers, count); }, 0));
  }
  // Late for the launch that is over: dropped. The next one works.
  workers.plane(0).Push(TestWorkers::Peer(3), {77, CollectiveKey{0, 0, 3, 0, 0}.Pack()}, {&c, 1, nullptr}, {});
  workers.Launch(78);
  EXPECT_TRUE(workers.CallAll(0, operands, &statuses) == Expected(c, workers.program().steps()[0], operands));
}

// A peer that pushes what is not its to push ends this launch, and nothing else.
TEST(CollectiveEngine, PushesThatNobodyWaitsForEndTheLaunch) {
  const Case c{CollectiveOp::ALL_REDUCE, kAll, {3}, DType::kF32, CollectiveOp::SUM};
  const std::vector<CollectiveKey> keys = {
      {0, 0, 0, 0, 0},   // a value of worker 0's own
      {0, 0, 1, 4, 0},   // a round ahead
      {0, 0, 0, 5, 0},   // no subtree's first
      {0, 0, 0, 4, 1},   // a second operand
      {1, 0, 0, 4, 0},   // a phase that is not pushed
      {0, 1, 0, 4, 0},   // no such collective
      {0, 0, 0, 99, 0},  // no such device
      {0, 0, 0, 4, 0},   // of another size
  };
  for (size_t i = 0; i < keys.size(); ++i) {
    TestWorkers workers(ProgramOf(c), kPlacements[1], 77 + i);
    const std::vector<std::byte> value(i + 1 == keys.size() ? 63 : 64);
    EXPECT_TRUE(Becomes([&] { return workers.plane(1).Stats().push_outlets; }, 1));
    workers.plane(1).Push(TestWorkers::Peer(0), {77 + i, keys[i].Pack()}, {value.data(), value.size(), nullptr}, {});
    EXPECT_TRUE(Becomes([&] { return static_cast<uint64_t>(workers.run(1)->status().code()); },
                        static_cast<uint64_t>(absl::StatusCode::kInternal)))
        << i << workers.run(1)->status();
    workers.Launch(177 + i);
    const Bytes operands = RandomOperands(workers.program().steps()[0], 1);
    std::vector<absl::Status> statuses;
    EXPECT_TRUE(workers.CallAll(0, operands, &statuses) == Expected(c, workers.program().steps()[0], operands));
  }
}

TEST(CollectiveEngine, LostWorkerEndsTheLaunch) {
  const Case c{CollectiveOp::ALL_GATHER, kAll, {100'000}};
  TestWorkers workers(ProgramOf(c), kPlacements[1]);
  Bytes operands = RandomOperands(workers.program().steps()[0], 1);
  TestWorkers::Calls calls(workers, 0, operands, 4);
  workers.plane(0).ClosePeer(TestWorkers::Peer(1), absl::DataLossError("worker 1 died"));
  calls.Wait();
  for (const absl::Status& status : calls.statuses) EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  for (int wait = 0; wait < 5000 && workers.run(0)->pending() != 0; ++wait) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(workers.run(0)->pending(), 0);
}

// A broken connection is no reason by itself: the calls end with what the control plane then says.
TEST(CollectiveEngine, ABrokenConnectionWaitsForTheControlPlane) {
  const Case c{CollectiveOp::ALL_GATHER, kAll, {100'000}};
  absl::Notification broken;
  std::atomic<bool> told{false};  // it may be said more than once
  TestWorkers workers(ProgramOf(c), kPlacements[1], 77, [&](const absl::Status& why) {
    EXPECT_EQ(why.code(), absl::StatusCode::kUnavailable);
    if (!told.exchange(true)) broken.Notify();
  });
  Bytes operands = RandomOperands(workers.program().steps()[0], 1);
  TestWorkers::Calls calls(workers, 0, operands, 4);
  workers.plane(1).Shutdown();
  broken.WaitForNotification();
  EXPECT_TRUE(workers.run(0)->status().ok());
  workers.run(0)->Abort(absl::DataLossError("worker 1 died"));
  calls.Wait();
  for (const absl::Status& status : calls.statuses) EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
}

TEST(CollectiveProgram, DamagedTablesAreRefused) {
  const Case good{CollectiveOp::ALL_REDUCE, kAll, {4}, DType::kF32, CollectiveOp::SUM};
  auto code = [](const CollectiveTable& table) { return CollectiveProgram::Make(table).status().code(); };
  EXPECT_EQ(code(TableOf(good)), absl::StatusCode::kOk);
  CollectiveTable table = TableOf(good);
  table.mutable_ops(0)->set_groups(1);
  EXPECT_EQ(code(table), absl::StatusCode::kInvalidArgument);
  table = TableOf(good);
  table.mutable_groups(0)->mutable_groups(0)->set_members(0, 8);
  EXPECT_EQ(code(table), absl::StatusCode::kInvalidArgument);
  table = TableOf(good);
  table.mutable_ops(0)->mutable_results(0)->set_elements(5);
  EXPECT_EQ(code(table), absl::StatusCode::kInvalidArgument);
  table = TableOf(good);
  table.mutable_ops(0)->mutable_operands(0)->set_elements(int64_t{1} << 62);
  EXPECT_EQ(code(table), absl::StatusCode::kInvalidArgument);
  table = TableOf(good);
  table.mutable_ops(0)->set_reduction(CollectiveOp::XOR);
  EXPECT_EQ(code(table), absl::StatusCode::kUnimplemented);
  table = TableOf({CollectiveOp::ALL_GATHER, kUnequal, {4}});
  EXPECT_EQ(code(table), absl::StatusCode::kInvalidArgument);
  table = TableOf(good);
  table.mutable_groups(0)->add_groups();
  EXPECT_EQ(code(table), absl::StatusCode::kInvalidArgument);
  table = TableOf(good);
  table.set_num_partitions(1 << 20);
  EXPECT_EQ(code(table), absl::StatusCode::kResourceExhausted);
  table = TableOf(good);
  table.clear_ops();
  table.set_num_replicas(0);
  EXPECT_EQ(code(table), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace landbridge
