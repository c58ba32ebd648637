#include "frontdoor/ifrt_proxy/session_pipe.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace landbridge {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Notes what it is told to do; the test answers.
class FakeStream final : public SessionPipe::Stream {
 public:
  void StartRead() override { did.push_back("read"); }
  void StartWrite(const SessionPipe::Response& response, bool more_follows) override {
    did.push_back("write " + std::to_string(response.response_metadata().op_id()) + (more_follows ? "+" : ""));
  }
  void Cancel() override { did.push_back("cancel"); }
  void Finish() override { did.push_back("finish"); }
  std::vector<std::string> Did() { return std::exchange(did, {}); }

  std::vector<std::string> did;
};

class SessionPipeTest : public ::testing::Test {
 protected:
  SessionPipeTest() : pipe_(std::make_shared<SessionPipe>(SessionId(1), [this] { ++wakes_; })) {}

  SessionPipe::RequestPtr Execute(uint64_t op) {
    SessionPipe::RequestPtr request = pipe_->NewRequest();
    request->mutable_message()->mutable_request_metadata()->set_op_id(op);
    request->mutable_message()->mutable_loaded_executable_execute_request();
    return request;
  }
  SessionPipe::RequestPtr Destruct(uint64_t op) {
    SessionPipe::RequestPtr request = pipe_->NewRequest();
    request->mutable_message()->mutable_request_metadata()->set_op_id(op);
    request->mutable_message()->mutable_destruct_array_request()->add_array_handle(op);
    return request;
  }
  static std::vector<std::unique_ptr<SessionPipe::Response>> Responses(std::vector<uint64_t> ops) {
    std::vector<std::unique_ptr<SessionPipe::Response>> responses;
    for (uint64_t op : ops) {
      responses.push_back(std::make_unique<SessionPipe::Response>());
      responses.back()->mutable_response_metadata()->set_op_id(op);
    }
    return responses;
  }
  std::vector<uint64_t> Taken() {
    std::vector<SessionPipe::RequestPtr> requests = pipe_->TakeRequests();
    std::vector<uint64_t> ops;
    for (const auto& request : requests) ops.push_back(request->message().request_metadata().op_id());
    pipe_->Recycle(std::move(requests));
    return ops;
  }

  int wakes_ = 0;
  FakeStream stream_;
  std::shared_ptr<SessionPipe> pipe_;
};

TEST_F(SessionPipeTest, ReadsOnAndWakesTheLoopOnceForSeveralRequests) {
  pipe_->Start(&stream_);
  EXPECT_THAT(stream_.Did(), ElementsAre("read"));
  EXPECT_FALSE(pipe_->OnRead(Execute(1)));
  EXPECT_FALSE(pipe_->OnRead(Execute(2)));
  EXPECT_THAT(stream_.Did(), ElementsAre("read", "read"));
  EXPECT_EQ(wakes_, 1);
  EXPECT_THAT(Taken(), ElementsAre(1, 2));
  EXPECT_FALSE(pipe_->OnRead(Execute(3)));
  EXPECT_EQ(wakes_, 2);
  EXPECT_THAT(Taken(), ElementsAre(3));
}

TEST_F(SessionPipeTest, ARequestThatCanWaitGoesWithTheNextOrIsAnnounced) {
  pipe_->Start(&stream_);
  EXPECT_TRUE(pipe_->OnRead(Destruct(1)));
  EXPECT_EQ(wakes_, 0);
  EXPECT_FALSE(pipe_->OnRead(Execute(2)));
  EXPECT_EQ(wakes_, 1);
  EXPECT_THAT(Taken(), ElementsAre(1, 2));
  pipe_->Announce();  // nothing is left to announce
  EXPECT_EQ(wakes_, 1);
  EXPECT_TRUE(pipe_->OnRead(Destruct(3)));
  pipe_->Announce();
  EXPECT_EQ(wakes_, 2);
  EXPECT_THAT(Taken(), ElementsAre(3));
  // A second one does not wait: such a client sends nothing else.
  EXPECT_TRUE(pipe_->OnRead(Destruct(4)));
  EXPECT_FALSE(pipe_->OnRead(Destruct(5)));
  EXPECT_EQ(wakes_, 3);
}

TEST_F(SessionPipeTest, WritesOneAfterTheOtherAndSaysWhenMoreFollow) {
  pipe_->Start(&stream_);
  stream_.Did();
  pipe_->PushResponses(Responses({1, 2, 3}));
  EXPECT_THAT(stream_.Did(), ElementsAre("write 1+"));
  pipe_->PushResponses(Responses({4}));
  EXPECT_THAT(stream_.Did(), IsEmpty());
  for (const char* next : {"write 2+", "write 3+", "write 4"}) {
    pipe_->OnWritten(true);
    EXPECT_THAT(stream_.Did(), ElementsAre(next));
  }
  pipe_->OnWritten(true);
  EXPECT_THAT(stream_.Did(), IsEmpty());
}

TEST_F(SessionPipeTest, APausedOrFullSessionIsNotRead) {
  pipe_->SetPaused(true);
  pipe_->Start(&stream_);
  EXPECT_THAT(stream_.Did(), IsEmpty());
  pipe_->SetPaused(false);
  EXPECT_THAT(stream_.Did(), ElementsAre("read"));
  for (size_t i = 0; i < limits::kSessionQueuedRequestsMax; ++i) pipe_->OnRead(Execute(i));
  EXPECT_EQ(stream_.Did().size(), limits::kSessionQueuedRequestsMax - 1);  // the last one left no room
  EXPECT_EQ(Taken().size(), limits::kSessionQueuedRequestsMax);
  EXPECT_THAT(stream_.Did(), ElementsAre("read"));
}

TEST_F(SessionPipeTest, AnswersThatTheClientDoesNotTakeStopTheReading) {
  pipe_->Start(&stream_);
  stream_.Did();
  std::vector<uint64_t> ops(limits::kSessionQueuedRequestsMax + 1, 7);
  pipe_->PushResponses(Responses(ops));
  EXPECT_THAT(stream_.Did(), ElementsAre("write 7+"));
  pipe_->OnRead(Execute(1));
  EXPECT_THAT(stream_.Did(), IsEmpty());
  pipe_->OnWritten(true);
  EXPECT_THAT(stream_.Did(), ElementsAre("write 7+", "read"));
}

TEST_F(SessionPipeTest, WhatTheRequestsHoldIsCountedWhateverTheyAre) {
  auto names = [this] {  // bytes in strings
    SessionPipe::RequestPtr request = pipe_->NewRequest();
    request->mutable_message()->mutable_compile_request()->add_host_callbacks(std::string(9u << 20, 'c'));
    return request;
  };
  auto objects = [this] {  // some bytes each on the wire, many in memory
    SessionPipe::RequestPtr request = pipe_->NewRequest();
    auto* arrays = request->mutable_message()->mutable_make_arrays_from_host_buffer_shards_request();
    for (int i = 0; i < 100'000; ++i) arrays->add_specs();
    return request;
  };
  for (const std::function<SessionPipe::RequestPtr()>& make :
       {std::function<SessionPipe::RequestPtr()>(names), std::function<SessionPipe::RequestPtr()>(objects)}) {
    FakeStream stream;
    pipe_ = std::make_shared<SessionPipe>(SessionId(1), [this] { ++wakes_; });
    pipe_->Start(&stream);
    const size_t each = make()->bytes();
    ASSERT_GT(each, size_t{4} << 20);
    const size_t fit = limits::kSessionParkedBytesMax / each + 1;
    for (size_t i = 0; i < fit; ++i) {
      EXPECT_THAT(stream.Did(), ElementsAre("read")) << i;
      pipe_->OnRead(make());
    }
    EXPECT_THAT(stream.Did(), IsEmpty());
    EXPECT_EQ(Taken().size(), fit);
    EXPECT_THAT(stream.Did(), ElementsAre("read"));
    pipe_->Close();
    pipe_->OnRead(nullptr);
  }
}

TEST_F(SessionPipeTest, RequestsWaitWhileTheClientDoesNotTakeItsAnswers) {
  pipe_->Start(&stream_);
  auto answers = Responses({1, 2});
  for (auto& answer : answers) {
    auto* status = answer->mutable_response_metadata()->mutable_status();
    status->set_message(std::string(kSessionAnswerBytesMax * 3 / 4, 'x'));
  }
  pipe_->PushResponses(std::move(answers));
  EXPECT_THAT(stream_.Did(), ElementsAre("read", "write 1+"));
  pipe_->OnRead(Execute(3));
  EXPECT_THAT(stream_.Did(), IsEmpty());  // not read on
  EXPECT_EQ(wakes_, 1);
  EXPECT_THAT(Taken(), IsEmpty());  // nor looked at
  pipe_->OnWritten(true);
  EXPECT_EQ(wakes_, 2);
  EXPECT_THAT(stream_.Did(), ElementsAre("write 2", "read"));
  EXPECT_THAT(Taken(), ElementsAre(3));
  // A session that found nothing to do in that time is woken as ever.
  pipe_->OnWritten(true);
  pipe_->PushResponses([] {
    auto big = Responses({4});
    big[0]->mutable_response_metadata()->mutable_status()->set_message(std::string(kSessionAnswerBytesMax, 'x'));
    return big;
  }());
  EXPECT_THAT(Taken(), IsEmpty());
  pipe_->OnWritten(true);
  EXPECT_EQ(wakes_, 2);
  pipe_->OnRead(Execute(5));
  EXPECT_EQ(wakes_, 3);
  EXPECT_THAT(Taken(), ElementsAre(5));
}

TEST_F(SessionPipeTest, WhatIsPutBackComesFirstOnceAnswersHaveLeft) {
  pipe_->Start(&stream_);
  for (uint64_t op : {1, 2, 3}) pipe_->OnRead(Execute(op));
  std::vector<SessionPipe::RequestPtr> taken = pipe_->TakeRequests();
  ASSERT_EQ(taken.size(), 3u);
  pipe_->OnRead(Execute(4));
  EXPECT_EQ(wakes_, 2);
  taken.erase(taken.begin());
  pipe_->PutBack(std::move(taken));
  auto big = Responses({1});
  big[0]->mutable_response_metadata()->mutable_status()->set_message(std::string(kSessionAnswerBytesMax, 'x'));
  pipe_->PushResponses(std::move(big));
  EXPECT_THAT(Taken(), IsEmpty());
  pipe_->OnWritten(true);
  EXPECT_EQ(wakes_, 3);
  EXPECT_THAT(Taken(), ElementsAre(2, 3, 4));
}

TEST_F(SessionPipeTest, ProgramsThatWaitForTheCompilerStopTheReading) {
  pipe_->Start(&stream_);
  pipe_->AddKept(kSessionCompileBytesMax - 1);
  pipe_->OnRead(Execute(1));
  EXPECT_THAT(stream_.Did(), ElementsAre("read", "read"));
  pipe_->AddKept(1);
  pipe_->OnRead(Execute(2));
  EXPECT_THAT(stream_.Did(), IsEmpty());
  EXPECT_THAT(Taken(), ElementsAre(1, 2));
  EXPECT_THAT(stream_.Did(), IsEmpty());
  pipe_->RemoveKept(1);
  EXPECT_THAT(stream_.Did(), ElementsAre("read"));
}

TEST_F(SessionPipeTest, IsFinishedOnceWhenNothingIsOpen) {
  pipe_->Start(&stream_);
  pipe_->PushResponses(Responses({1, 2}));
  EXPECT_THAT(stream_.Did(), ElementsAre("read", "write 1+"));
  pipe_->OnRead(Execute(1));
  stream_.Did();
  pipe_->Close();
  EXPECT_THAT(stream_.Did(), ElementsAre("cancel"));
  pipe_->OnEnded();
  pipe_->OnWritten(false);
  EXPECT_THAT(stream_.Did(), IsEmpty());
  pipe_->OnRead(nullptr);
  EXPECT_THAT(stream_.Did(), ElementsAre("finish"));
  // Late calls of the loop find nobody.
  pipe_->PushResponses(Responses({3}));
  pipe_->SetPaused(false);
  pipe_->Close();
  EXPECT_THAT(Taken(), IsEmpty());
  EXPECT_THAT(stream_.Did(), IsEmpty());
}

TEST_F(SessionPipeTest, TheClientsEndIsNoticedWithoutReading) {
  pipe_->SetPaused(true);
  pipe_->Start(&stream_);
  pipe_->OnEnded();
  EXPECT_THAT(stream_.Did(), ElementsAre("finish"));
  EXPECT_TRUE(pipe_->closed());
}

TEST_F(SessionPipeTest, TheEndOfRequestsEndsTheSession) {
  pipe_->Start(&stream_);
  pipe_->OnRead(Execute(1));
  stream_.Did();
  pipe_->OnRead(nullptr);
  EXPECT_THAT(stream_.Did(), ElementsAre("finish"));
}

TEST(ReceivedRequest, IsEmptyAgainAfterClear) {
  ReceivedRequest request;
  for (int i = 0; i < 1000; ++i) request.mutable_message()->mutable_destruct_array_request()->add_array_handle(1);
  request.Clear();
  EXPECT_EQ(request.message().ByteSizeLong(), 0u);
  EXPECT_TRUE(request.mutable_message()->ParseFromString(""));
}

}  // namespace
}  // namespace landbridge
