#include "worker/shell/order_mail.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/in_process_data_plane.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/shell/shell_limits.h"

namespace landbridge {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Strings = std::vector<std::string>;

// One worker's end.
struct End {
  End(Loop* loop, dataplane::InProcessFabric* fabric, uint64_t self) : context(std::make_shared<ShellContext>()) {
    dataplane::DataPlaneOptions options;
    options.self = Incarnation(self);
    plane = fabric->MakeDataPlane(options);
    context->loop = loop;
    context->data_plane = plane.get();
    context->inbox = std::make_shared<Inbox>(loop, [this](bool) {
      mails.Flush();
      return Inbox::Outlook();
    });
  }
  ~End() {
    mails.Stop();
    plane->Shutdown();
    context->inbox->Close();
  }
  std::shared_ptr<ShellContext> context;
  std::unique_ptr<dataplane::DataPlane> plane;
  Strings got;
  std::vector<absl::Status> broken;
  OrderMails mails{
      context.get(),
      [this](Incarnation from, absl::string_view mail) { got.push_back(absl::StrCat(from.ToString(), " ", mail)); },
      [this](Incarnation, const absl::Status& why) { broken.push_back(why); }};
};

class OrderMailTest : public ::testing::Test {
 protected:
  OrderMailTest() : a_(&loop_, &fabric_, 1), b_(&loop_, &fabric_, 2) {
    EXPECT_TRUE(a_.plane->AddPeer(Incarnation(2), b_.plane->address()).ok());
    EXPECT_TRUE(b_.plane->AddPeer(Incarnation(1), a_.plane->address()).ok());
  }
  void RunUntil(const std::function<bool()>& met) {
    while (!met()) loop_.RunOnce(kSecond);
  }
  Loop loop_;
  dataplane::InProcessFabric fabric_;
  End a_, b_;
};

TEST_F(OrderMailTest, BothWaysAndInOrder) {
  a_.mails.ListenTo(Incarnation(2));
  b_.mails.ListenTo(Incarnation(1));
  a_.mails.ListenTo(Incarnation(2));  // again
  for (const char* text : {"one", "", "three"}) a_.mails.Send(Incarnation(2), text);
  a_.mails.Flush();
  b_.mails.Send(Incarnation(1), "back");
  b_.mails.Flush();
  RunUntil([&] { return b_.got.size() == 3 && a_.got.size() == 1; });
  EXPECT_THAT(b_.got, ElementsAre("i1 one", "i1 ", "i1 three"));
  EXPECT_THAT(a_.got, ElementsAre("i2 back"));
}

// Much more than may wait for the reader, messages larger than pages, and a reader who comes late.
TEST_F(OrderMailTest, NothingIsLostWhateverItsSize) {
  Strings want;
  for (size_t i = 0; i < 200; ++i) {
    const std::string text(i * 37 % 3000, static_cast<char>('a' + i % 26));
    a_.mails.Send(Incarnation(2), text);
    want.push_back("i1 " + text);
  }
  a_.mails.Flush();
  loop_.RunOnce(0);
  EXPECT_LE(a_.plane->Stats().keys_published, limits::kMailPagesOut);
  b_.mails.ListenTo(Incarnation(1));
  RunUntil([&] { return b_.got.size() == want.size(); });
  EXPECT_EQ(b_.got, want);
  // Pages that were read are let go.
  RunUntil([&] { return a_.plane->Stats().keys_published <= limits::kMailPagesAhead; });
}

TEST_F(OrderMailTest, WhoIsLostIsNotReadAnyMore) {
  b_.mails.ListenTo(Incarnation(1));
  b_.mails.PeerLost(Incarnation(1));
  b_.plane->ClosePeer(Incarnation(1), absl::DataLossError("lost"));
  a_.mails.Send(Incarnation(2), "late");
  a_.mails.Flush();
  for (int i = 0; i < 20; ++i) loop_.RunOnce(kMillisecond);
  EXPECT_THAT(b_.got, IsEmpty());
}

TEST(MailReaderTest, RefusesWhatIsNoMail) {
  std::string stream;
  AppendMail("hello", &stream);
  AppendMail(std::string(2000, 'x'), &stream);
  Strings got;
  const auto keep = [&](absl::string_view message) { got.emplace_back(message); };
  MailReader reader;
  while (!stream.empty()) EXPECT_TRUE(reader.Add(TakeMailPage(&stream), keep).ok());
  EXPECT_THAT(got, ElementsAre("hello", std::string(2000, 'x')));

  EXPECT_FALSE(MailReader().Add("short", keep).ok());
  std::string page(limits::kMailPageBytes, '\0');
  page[1] = 0x7f;  // more than a page has
  EXPECT_FALSE(MailReader().Add(page, keep).ok());
  std::string huge("\xff\xff\xff\x7f", 4);
  EXPECT_FALSE(reader.Add(TakeMailPage(&huge), keep).ok());
  AppendMail("after that", &stream);
  EXPECT_FALSE(reader.Add(TakeMailPage(&stream), keep).ok());
  EXPECT_EQ(got.size(), 2u);
}

}  // namespace
}  // namespace landbridge
