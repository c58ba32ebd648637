#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "cli/cluster_state.h"
#include "cli/process.h"
#include "cli/status_report.h"

namespace landbridge::cli {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

ClusterState Example() {
  ClusterState state;
  state.supervisor_pid = 10;
  state.supervisor_start_time = 11;
  state.proxy_address = "127.0.0.1:29000";
  state.resource_manager_address = "127.0.0.1:29001";
  state.slices = 2;
  state.workers_per_slice = 1;
  state.devices_per_worker = 4;
  state.plugin = "/p.so";
  state.processes.push_back({"proxy", 20, 21, "/l", "127.0.0.1:29000", "127.0.0.1:29002", "", 1});
  state.processes.push_back(
      {"worker-0-0", 30, 31, "/w", "127.0.0.1:4", "127.0.0.1:4", "was killed by signal 9 (Killed)", 2});
  return state;
}

TEST(ClusterState, SurvivesTheFile) {
  const std::string dir = absl::StrCat(::testing::TempDir(), "/state_", getpid());
  absl::StatusOr<int> lock = LockStateDir(dir);
  ASSERT_TRUE(lock.ok()) << lock.status();
  EXPECT_THAT(std::string(LockStateDir(dir).status().message()), HasSubstr("already runs in"));
  ASSERT_TRUE(PrepareStateDir(dir).ok());
  EXPECT_THAT(std::string(LoadState(dir).status().message()), HasSubstr("no cluster runs in"));
  ASSERT_TRUE(SaveState(dir, Example()).ok());
  absl::StatusOr<ClusterState> loaded = LoadState(dir);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(ToJson(*loaded), ToJson(Example()));
  EXPECT_EQ(BackendTarget(*loaded), "grpc://127.0.0.1:29000");
  close(*lock);
  absl::StatusOr<int> again = LockStateDir(dir);
  EXPECT_TRUE(again.ok());
  close(*again);
  std::filesystem::remove_all(dir);
}

TEST(ClusterState, DamagedFilesAreErrors) {
  EXPECT_FALSE(FromJson(json::object()).ok());
  json other = ToJson(Example());
  other["format"] = 2;
  EXPECT_THAT(std::string(FromJson(other).status().message()), HasSubstr("another version"));
  json wrong = ToJson(Example());
  wrong["supervisor_pid"] = "ten";
  EXPECT_THAT(std::string(FromJson(wrong).status().message()), HasSubstr("damaged"));
}

json ProxyAnswer() {
  return json::parse(R"({
    "slices": [
      {"index": 0, "type": "cpu:4", "placed": true, "workers": [
        {"up": true, "name": "w0", "ops_parked": 0, "devices": [{"device": 0, "bytes_in_use": 7}, {"device": 1}]}]},
      {"index": 1, "type": "cpu:4", "placed": false, "waits_for": "2 requests ahead of it", "workers": []}],
    "controller": {"slots": [{"slice": 0, "worker": 0, "waiting": [
      {"what": "launch", "ticket": "t7", "session": "s1", "name": "f", "age_ms": 5, "waits_for": "a12"}]}]},
    "front_door": {"sessions": [{"session": 1}]}})");
}

TEST(Status, JoinsProcessesWithTheServersAnswers) {
  const json proxy = ProxyAnswer();
  const json report = BuildStatus(Example(), "/s", true, {true, false}, json{{"workers", json::array()}}, proxy,
                                  absl::UnavailableError("no explanation"));
  EXPECT_TRUE(report["running"].get<bool>());
  EXPECT_TRUE(report["processes"][0]["alive"].get<bool>());
  EXPECT_FALSE(report["processes"][1]["alive"].get<bool>());
  EXPECT_EQ(report["proxy"], proxy);
  EXPECT_EQ(report["slices"][0]["workers"], "w0");
  EXPECT_EQ(report["devices"], json::parse(R"([{"slice": 0, "worker": "w0", "device": 0, "bytes_in_use": 7},
                                               {"slice": 0, "worker": "w0", "device": 1}])"));
  EXPECT_EQ(report["parked"], json::parse(R"([{"what": "slice 1", "waits_for": "2 requests ahead of it"},
                                              {"where": "slice0/0", "what": "launch f", "ticket": "t7", "session": "s1",
                                               "age_ms": 5, "state": "parked", "waits_for": "a12"}])"));
  EXPECT_EQ(report["sessions"], json::parse(R"([{"session": 1}])"));
  const std::string text = RenderStatus(report);
  EXPECT_THAT(text, HasSubstr("running at grpc://127.0.0.1:29000"));
  EXPECT_THAT(text, HasSubstr("was killed by signal 9"));
  EXPECT_THAT(text, HasSubstr("2 requests ahead of it"));
  EXPECT_THAT(RenderDevices(report), HasSubstr("w0"));
}

TEST(Status, WhatTheProxySaysOfItsWorkersIsTakenWithCare) {
  EXPECT_EQ(CountWorkers({{"expected", 3}, {"up", 2}}).expected, 3);
  EXPECT_EQ(CountWorkers({{"expected", 3}, {"up", 2}}).up, 2);
  EXPECT_EQ(CountWorkers({{"expected", "3"}}).expected, 0);
  EXPECT_EQ(CountWorkers(json("text")).expected, 0);
}

TEST(Status, SaysWhyAServerDoesNotAnswer) {
  const json report = BuildStatus(Example(), "/s", false, {false, false}, absl::UnavailableError("gone"),
                                  absl::UnavailableError("gone too"), absl::UnavailableError("gone too"));
  EXPECT_FALSE(report["running"].get<bool>());
  EXPECT_EQ(report["resource_manager_error"], "gone");
  EXPECT_EQ(report["proxy_error"], "gone too");
  EXPECT_THAT(RenderStatus(report), HasSubstr("proxy_error: gone too"));
}

}  // namespace
}  // namespace landbridge::cli
