// One formation, as one of its members sees it: the lives of a slice's workers that make their plugins' clients together.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/ids.h"
#include "cluster/admin.h"
#include "pjrt/key_value_store.h"
#include "proto/landbridge/cluster.pb.h"
#include "worker/shell/formation_store.h"

namespace landbridge {

// A formation is known by its members' incarnations, in order: whoever starts again makes it another one. The store is with the
// first member; the others ask on its control port ({"what": "formation"}), with a proof that they know the cluster's secret.
//
// Thread-safety: the members of KeyValueStore and Close from any thread; the rest on the loop's thread. It must outlive the
// client that is made with it.
class Formation : public pjrt::KeyValueStore {
 public:
  Formation(std::vector<FormationMember> members, Incarnation self, absl::string_view cluster_secret);

  const std::string& epoch() const { return epoch_; }
  int index() const { return index_; }  // -1: this life is not in it
  int size() const { return static_cast<int>(members_.size()); }
  const std::string& proof() const { return proof_; }

  absl::Status Put(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::string> Get(absl::string_view key, DurationNs timeout) override;
  absl::StatusOr<std::string> TryGet(absl::string_view key) override;

  // The first member: answers what the others ask. [loop]
  void OnRequest(const nlohmann::json& request, TimeNs now, AdminTable::Answer answer,
                 std::function<void(std::function<void()>)> post);
  void OnTick(TimeNs now);

  // It is over: whoever waits in it hears why.
  void Close(const absl::Status& why);

 private:
  // Until `deadline` from members that are not that far yet.
  absl::StatusOr<std::string> Ask(const char* op, absl::string_view key, absl::string_view value, DurationNs timeout);
  absl::Status closed() const;

  const std::vector<FormationMember> members_;
  std::string epoch_;
  const std::string proof_;
  int index_ = -1;
  std::unique_ptr<FormationStore> store_;  // of the first member
  mutable absl::Mutex mutex_;
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace landbridge
