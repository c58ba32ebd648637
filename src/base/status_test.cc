#include "base/status.h"

#include <gtest/gtest.h>

namespace landbridge {
namespace {

TEST(StatusTest, ContextKeepsCodeAndPayload) {
  absl::Status status = absl::DataLossError("worker gone");
  status.SetPayload("k", absl::Cord("v"));
  absl::Status with = AddContext(status, "reading a3.0");
  EXPECT_EQ(with.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(with.message(), "reading a3.0: worker gone");
  EXPECT_EQ(*with.GetPayload("k"), absl::Cord("v"));
  EXPECT_TRUE(AddContext(absl::OkStatus(), "x").ok());
}

TEST(StatusTest, WhatIsAddedToTheEndKeepsCodeAndPayload) {
  absl::Status status = absl::AbortedError("late");
  status.SetPayload("k", absl::Cord("v"));
  absl::Status with = AddToEnd(status, " [log: x]");
  EXPECT_EQ(with.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(with.message(), "late [log: x]");
  EXPECT_EQ(*with.GetPayload("k"), absl::Cord("v"));
  EXPECT_TRUE(AddToEnd(absl::OkStatus(), "x").ok());
}

TEST(StatusTest, ForeignTextNeverLooksLikeALostSlice) {
  for (const char* word : {"DATA_LOSS", "INTERNAL", "NOT_FOUND", "DEADLINE_EXCEEDED"}) {
    std::string text = std::string("XLA says ") + word + ": oops " + word;
    EXPECT_EQ(FilterForeignText(text).find(word), std::string::npos) << word;
  }
  EXPECT_EQ(FilterForeignText("NOT_FOUND: target f"), "not found: target f");
}

TEST(StatusTest, PluginCodes) {
  EXPECT_EQ(FromPluginError(absl::InternalError("INTERNAL: x"), "compile").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FromPluginError(absl::NotFoundError("target"), "compile").message(), "compile: target");
  EXPECT_EQ(FromPluginError(absl::ResourceExhaustedError("m"), "run").code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace landbridge
