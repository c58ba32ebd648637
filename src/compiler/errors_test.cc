#include "compiler/errors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/limits.h"

namespace landbridge {
namespace {

using testing::HasSubstr;

TEST(CompileErrors, MissingTargetIsNamed) {
  absl::Status status = FromCompileError(
      absl::NotFoundError("No FFI handler registered for my_target on platform Host: NOT_FOUND"), "compiling f");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("'my_target'"));
  EXPECT_THAT(std::string(status.message()), testing::Not(HasSubstr("NOT_FOUND")));
}

TEST(CompileErrors, CallsOfTheClientsProcessAreRefusedByName) {
  const std::string zero(1, '\0');
  for (const std::string& program : {std::string("%1 = stablehlo.custom_call @CustomSPMDPartitioning(%0)"),
                                     zero + "CustomSPMDPartitioning" + zero, "\"InspectSharding\"" + zero}) {
    const absl::Status status = CheckCallsOfTheClient(program);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(status.message()), testing::AnyOf(HasSubstr("jax.shard_map"), HasSubstr("x.sharding")));
  }
  EXPECT_TRUE(CheckCallsOfTheClient("func.func @MyInspectSharding2()").ok());
  EXPECT_TRUE(CheckCallsOfTheClient("").ok());
}

TEST(CompileErrors, OthersKeepTheirMeaning) {
  EXPECT_TRUE(FromCompileError(absl::OkStatus(), "x").ok());
  EXPECT_EQ(FromCompileError(absl::InternalError("INTERNAL: bad"), "x").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FromCompileError(absl::ResourceExhaustedError("m"), "x").code(), absl::StatusCode::kResourceExhausted);
}

TEST(CompileErrors, LongTextsAreCut) {
  std::string text(limits::kCompileErrorBytesMax + 100, 'q');
  absl::Status status = FromCompileError(absl::InvalidArgumentError(text), "x");
  EXPECT_LT(status.message().size(), limits::kCompileErrorBytesMax + 50);
  EXPECT_THAT(std::string(status.message()), HasSubstr("(cut)"));
}

}  // namespace
}  // namespace landbridge
