#include "worker/simulated/simulated_shell.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "worker/shell/box_copy.h"
#include "worker/simulated/simulated_limits.h"

namespace landbridge {
namespace {

BufferRef RefFrom(const BufferRefProto& proto) { return {ArrayId(proto.array()), proto.shard()}; }

template <typename Field>
std::vector<int64_t> ToVector(const Field& field) {
  return {field.begin(), field.end()};
}

// An empty box stands for the whole array.
IndexBox BoxFrom(const Box& proto, absl::Span<const int64_t> dims) {
  if (proto.start_size() == 0 && proto.limit_size() == 0) return IndexBox::Whole(dims);
  return {{proto.start().begin(), proto.start().end()}, {proto.limit().begin(), proto.limit().end()}};
}

const std::byte* Data(const std::string& bytes) { return reinterpret_cast<const std::byte*>(bytes.data()); }
std::byte* Data(std::string& bytes) { return reinterpret_cast<std::byte*>(bytes.data()); }

absl::Status NotOk(const absl::Status& why) { return why.ok() ? absl::CancelledError("not wanted any more") : why; }

// An upload's image as a dense one; null if that is too large to be kept.
absl::StatusOr<SimulatedBytes> DenseImage(const Upload& upload, std::string data) {
  const int element_bytes = HostElementBytes(static_cast<DType>(upload.dtype()));
  const std::vector<int64_t> dims = ToVector(upload.dims()), strides = ToVector(upload.byte_strides());
  LB_ASSIGN_OR_RETURN(int64_t dense_bytes, DenseBytes(dims, element_bytes));
  if (static_cast<int64_t>(data.size()) != upload.image_bytes()) {
    return absl::InvalidArgumentError(
        absl::StrCat("an image of ", upload.image_bytes(), " bytes arrived as ", data.size()));
  }
  if (IsDense(dims, strides, element_bytes)) {
    if (static_cast<int64_t>(data.size()) < dense_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("an image of ", data.size(), " bytes for an array of ", dense_bytes));
    }
    data.resize(static_cast<size_t>(dense_bytes));
    return std::make_shared<const std::string>(std::move(data));
  }
  LB_RETURN_IF_ERROR(CheckStrides(dims, strides, element_bytes, upload.image_bytes()));
  if (dense_bytes > limits::kSimulatedBufferBytesMax) return SimulatedBytes();
  std::string dense(static_cast<size_t>(dense_bytes), '\0');
  CopyStrided(Data(dense), DenseStrides(dims, element_bytes), Data(std::as_const(data)), strides, dims, element_bytes);
  return std::make_shared<const std::string>(std::move(dense));
}

}  // namespace

SimulatedShell::SimulatedShell(SimulatedHostContext* host, Options options)
    : host_(host),
      options_(std::move(options)),
      core_(options_.self, options_.limits, this),
      device_free_at_(options_.limits.device_bytes.size(), 0) {
  host_->shells[options_.self] = this;
}

SimulatedShell::~SimulatedShell() {
  host_->shells.erase(options_.self);
  host_->board->End(options_.self);
  for (const auto& [ref, bytes] : bytes_) host_->bytes_kept -= static_cast<int64_t>(bytes->size());
}

void SimulatedShell::SendMail(Incarnation peer, std::string mail) {
  host_->post(
      [host = host_, alive = std::weak_ptr<int>(host_->alive), from = options_.self, peer, mail = std::move(mail)] {
        if (alive.expired()) return;
        auto shell = host->shells.find(peer);
        if (shell == host->shells.end()) return;
        shell->second->mails_.Add(from, mail);
        shell->second->ReadMail(from);
      });
}

void SimulatedShell::ListenTo(Incarnation peer) {
  mails_.Listen(peer);
  Post([this, peer] { ReadMail(peer); });
}

void SimulatedShell::ReadMail(Incarnation peer) {
  for (std::string mail; mails_.Next(peer, &mail);) core_.OnMail(peer, mail, host_->now());
  options_.changed();
}

void SimulatedShell::Fence(const absl::Status& why) {
  host_->shells.erase(options_.self);
  core_.Fence(why, host_->now());
  host_->board->End(options_.self);
  // What waited for bytes of others never gets them.
  std::vector<std::shared_ptr<Make>> waiting;
  for (const auto& [id, make] : makes_) {
    if (make->missing > 0) waiting.push_back(make);
  }
  for (const std::shared_ptr<Make>& make : waiting) {
    make->missing = 0;
    make->status = why;
    FinishMake(make);
  }
}

std::function<void()> SimulatedShell::Guarded(std::function<void()> event) {
  return [this, alive = std::weak_ptr<int>(alive_), event = std::move(event)] {
    if (alive.expired()) return;
    event();
    options_.changed();
  };
}
void SimulatedShell::Post(std::function<void()> event) { host_->post(Guarded(std::move(event))); }

// ---------------------------------------------------------------- buffers

void SimulatedShell::Keep(BufferRef ref, SimulatedBytes bytes) {
  if (bytes == nullptr) return;
  const auto size = static_cast<int64_t>(bytes->size());
  if (size > limits::kSimulatedBufferBytesMax || host_->bytes_kept + size > limits::kSimulatedBytesMax) return;
  if (!bytes_.try_emplace(ref, std::move(bytes)).second) return;
  host_->bytes_kept += size;
}

SimulatedBytes SimulatedShell::BytesOf(BufferRef ref) const {
  auto it = bytes_.find(ref);
  return it == bytes_.end() ? nullptr : it->second;
}

void SimulatedShell::Free(BufferRef ref) {
  auto it = bytes_.find(ref);
  if (it == bytes_.end()) return;
  host_->bytes_kept -= static_cast<int64_t>(it->second->size());
  bytes_.erase(it);
}

// ---------------------------------------------------------------- programs

void SimulatedShell::Load(const LoadExecutable& load) {
  // The envelope is neither fetched nor opened: nothing of it would be run.
  Post([this, executable = ExecutableId(load.executable())] {
    core_.OnLoadDone(executable, absl::OkStatus(), host_->now());
  });
}

void SimulatedShell::HandOver(std::shared_ptr<const Launch> launch, uint64_t) {
  ++open_;
  const TimeNs now = host_->now();
  TimeNs start = now;
  for (uint32_t device : launch->devices()) {
    if (device < device_free_at_.size()) start = std::max(start, device_free_at_[device]);
  }
  const TimeNs end = start + host_->launch_time;
  for (uint32_t device : launch->devices()) {
    if (device < device_free_at_.size()) device_free_at_[device] = end;
  }
  const Ticket ticket(launch->ticket());
  if (end > now) return host_->run_after(end - now, Guarded([this, ticket] { LaunchDone(ticket); }));
  // Those of a turn end together, in the next.
  ended_.push_back(ticket);
  if (ended_.size() > 1) return;
  Post([this] {
    for (Ticket done : std::exchange(ended_, {})) LaunchDone(done);
  });
}

void SimulatedShell::LaunchDone(Ticket ticket) {
  --open_;
  ++launches_done_;
  core_.OnLaunchDone(ticket, absl::OkStatus(), host_->launch_time, host_->now());
}

// ---------------------------------------------------------------- uploads

void SimulatedShell::StartUpload(std::shared_ptr<const Upload> upload) {
  const uint64_t key = upload->key();
  const bool comes = !upload->pulled();
  uploads_[key] = std::move(upload);
  // Large ones are not fetched: nobody could look at them.
  if (!comes) Post([this, key] { FinishUpload(key, absl::OkStatus()); });
}

void SimulatedShell::UploadBytes(uint64_t key, std::string data) {
  auto it = uploads_.find(key);
  if (it == uploads_.end() || it->second->pulled()) return;
  absl::StatusOr<SimulatedBytes> dense = DenseImage(*it->second, std::move(data));
  if (dense.ok()) {
    for (const Target& target : it->second->targets()) Keep(RefFrom(target.ref()), *dense);
  }
  Post([this, key, status = dense.status()] { FinishUpload(key, status); });
}

void SimulatedShell::CancelUpload(uint64_t key, const absl::Status& why) {
  if (uploads_.contains(key)) Post([this, key, why] { FinishUpload(key, NotOk(why)); });
}

void SimulatedShell::FinishUpload(uint64_t key, const absl::Status& status) {
  if (uploads_.erase(key) != 0) core_.OnUploadDone(key, status, host_->now());
}

// ---------------------------------------------------------------- buffers made from pieces

void SimulatedShell::StartMake(std::shared_ptr<const MakeBuffers> op, int index) {
  auto make = std::make_shared<Make>();
  make->op = std::move(op);
  make->index = index;
  makes_[{Ticket(make->op->ticket()), index}] = make;
  make->missing = 1;  // of this function
  make->status = PrepareMake(make);
  for (const Piece& piece : make->op->buffers(index).pieces()) {
    if (make->status.ok()) make->status = AddPiece(make, piece);
  }
  if (--make->missing == 0 || !make->status.ok()) {
    make->missing = 0;
    Post([this, make] { FinishMake(make); });
  }
}

absl::Status SimulatedShell::PrepareMake(const std::shared_ptr<Make>& make) {
  const MakeBuffer& spec = make->op->buffers(make->index);
  make->dtype = static_cast<DType>(spec.dtype());
  make->dims = ToVector(spec.dims());
  LB_ASSIGN_OR_RETURN(int64_t bytes, DenseBytes(make->dims, HostElementBytes(make->dtype)));
  make->has_bytes = bytes <= limits::kSimulatedBufferBytesMax;
  if (make->has_bytes) make->image.assign(static_cast<size_t>(bytes), '\0');
  return absl::OkStatus();
}

absl::Status SimulatedShell::AddPiece(const std::shared_ptr<Make>& make, const Piece& piece) {
  const int element_bytes = HostElementBytes(make->dtype);
  const IndexBox target = BoxFrom(piece.target_box(), make->dims);
  LB_RETURN_IF_ERROR(CheckBox(make->dims, target));
  if (piece.has_local()) {
    SimulatedBytes source = BytesOf(RefFrom(piece.local()));
    if (source == nullptr) make->has_bytes = false;
    if (!make->has_bytes) return absl::OkStatus();
    const std::vector<int64_t> source_dims =
        piece.source_dims_size() > 0 || make->dims.empty() ? ToVector(piece.source_dims()) : make->dims;
    const IndexBox box = BoxFrom(piece.source_box(), source_dims);
    LB_RETURN_IF_ERROR(CheckBox(source_dims, box));
    if (box.dims() != target.dims()) {
      return absl::InvalidArgumentError(
          absl::StrCat("a piece ", box.ToString(), " does not fit into ", target.ToString()));
    }
    LB_ASSIGN_OR_RETURN(int64_t source_bytes, DenseBytes(source_dims, element_bytes));
    if (source_bytes != static_cast<int64_t>(source->size())) {
      return absl::InvalidArgumentError(
          absl::StrCat("a piece of a buffer of ", source->size(), " bytes, not ", source_bytes));
    }
    const std::vector<int64_t> strides = DenseStrides(make->dims, element_bytes);
    const std::vector<int64_t> source_strides = DenseStrides(source_dims, element_bytes);
    CopyStrided(Data(make->image) + OffsetOf(target.start, strides), strides,
                Data(*source) + OffsetOf(box.start, source_strides), source_strides, target.dims(), element_bytes);
    return absl::OkStatus();
  }
  if (target.Elements() == 0) return absl::OkStatus();
  const Incarnation peer(piece.remote().incarnation());
  // Simulated workers have no data plane; who has an address is a real one.
  if (!piece.remote().data_address().empty()) foreign_peers_.insert(peer);
  if (foreign_peers_.contains(peer)) {
    return absl::UnimplementedError(
        absl::StrCat("worker ", options_.worker_name,
                     " is simulated: it takes arrays from simulated workers of its own process only"));
  }
  ++make->missing;
  // `op` keeps the piece.
  host_->board->Pull(
      peer, TransferId(piece.remote().transfer()), options_.self,
      [this, alive = std::weak_ptr<int>(alive_), make, &piece](const absl::StatusOr<SimulatedBytes>& bytes) {
        if (!alive.expired()) Arrived(make, piece, bytes);
      });
  return absl::OkStatus();
}

void SimulatedShell::Arrived(const std::shared_ptr<Make>& make, const Piece& piece,
                             const absl::StatusOr<SimulatedBytes>& bytes) {
  if (make->missing == 0) return;  // given up meanwhile
  if (!bytes.ok()) {
    if (make->status.ok()) make->status = bytes.status();
  } else if (*bytes == nullptr) {
    make->has_bytes = false;
  } else if (make->has_bytes) {
    const int element_bytes = HostElementBytes(make->dtype);
    const IndexBox target = BoxFrom(piece.target_box(), make->dims);
    if (target.Elements() * element_bytes != static_cast<int64_t>((*bytes)->size())) {
      make->status =
          absl::InvalidArgumentError(absl::StrCat("a piece of ", (*bytes)->size(), " bytes for ", target.ToString()));
    } else {
      ScatterPackedRange(Data(make->image), DenseStrides(make->dims, element_bytes), target, element_bytes,
                         Data(**bytes), 0, static_cast<int64_t>((*bytes)->size()));
    }
  }
  if (--make->missing > 0) return;
  FinishMake(make);
  options_.changed();
}

void SimulatedShell::FinishMake(const std::shared_ptr<Make>& make) {
  const MakeId id{Ticket(make->op->ticket()), make->index};
  if (makes_.erase(id) == 0) return;
  if (make->status.ok() && make->has_bytes) {
    Keep(RefFrom(make->op->buffers(make->index).target().ref()),
         std::make_shared<const std::string>(std::move(make->image)));
  }
  core_.OnMakeDone(id.first, id.second, make->status, host_->now());
}

void SimulatedShell::CancelMake(Ticket ticket, int index, const absl::Status& why) {
  auto it = makes_.find({ticket, index});
  if (it == makes_.end() || it->second->missing == 0) return;  // it ends by itself
  const std::shared_ptr<Make> make = it->second;
  make->missing = 0;
  if (make->status.ok()) make->status = NotOk(why);
  Post([this, make] { FinishMake(make); });
}

void SimulatedShell::PeerLost(Incarnation peer, const absl::Status& why) {
  host_->board->CancelAll(peer, options_.self, NotOk(why));
}

// ---------------------------------------------------------------- publications and reads

void SimulatedShell::StartPublish(const Publish& publish) {
  const std::vector<int64_t> dims = ToVector(publish.dims());
  const int element_bytes = HostElementBytes(static_cast<DType>(publish.dtype()));
  const TransferId transfer(publish.transfer());
  const IndexBox box = BoxFrom(publish.box(), dims);
  absl::Status status = CheckBox(dims, box);
  SimulatedBytes source = BytesOf(RefFrom(publish.ref())), packed;
  if (status.ok() && source != nullptr) {
    absl::StatusOr<int64_t> dense_bytes = DenseBytes(dims, element_bytes);
    if (!dense_bytes.ok() || *dense_bytes != static_cast<int64_t>(source->size())) {
      status = absl::InvalidArgumentError(
          absl::StrCat("a box of a buffer of ", source->size(), " bytes that has another size"));
    } else {
      std::string bytes(static_cast<size_t>(box.Elements() * element_bytes), '\0');
      GatherPackedRange(Data(bytes), 0, static_cast<int64_t>(bytes.size()), Data(*source),
                        DenseStrides(dims, element_bytes), box, element_bytes);
      packed = std::make_shared<const std::string>(std::move(bytes));
    }
  }
  if (!status.ok()) return host_->board->Withdraw(options_.self, transfer, status);
  host_->board->Publish(options_.self, transfer, Incarnation(publish.peer()), std::move(packed));
}

void SimulatedShell::FailPublish(TransferId transfer, const absl::Status& why) {
  host_->board->Withdraw(options_.self, transfer, NotOk(why));
}

// What is on the board is a copy from the start.
void SimulatedShell::SnapshotPublish(TransferId transfer) {
  Post([this, transfer] { core_.OnPublishQuiet(transfer, host_->now()); });
}

void SimulatedShell::StopPublish(TransferId transfer, const absl::Status& why) {
  host_->board->Withdraw(options_.self, transfer, NotOk(why));
  Post([this, transfer] { core_.OnPublishQuiet(transfer, host_->now()); });
}

absl::StatusOr<std::string> SimulatedShell::ReadImage(const Read& read) const {
  const int element_bytes = HostElementBytes(static_cast<DType>(read.dtype()));
  const std::vector<int64_t> dims = ToVector(read.dims()), strides = ToVector(read.byte_strides());
  LB_ASSIGN_OR_RETURN(int64_t dense_bytes, DenseBytes(dims, element_bytes));
  if (read.image_bytes() == 0) return std::string();
  const SimulatedBytes bytes = BytesOf(RefFrom(read.ref()));
  if (bytes == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("this array has a size and no values: worker ", options_.worker_name,
                     " is simulated and runs no programs. Only what was uploaded to it in shards of at most ",
                     limits::kSimulatedBufferBytesMax, " bytes, or moved from there, can be read."));
  }
  if (static_cast<int64_t>(bytes->size()) != dense_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a read of ", dense_bytes, " bytes from a buffer of ", bytes->size()));
  }
  if (IsDense(dims, strides, element_bytes)) {
    if (read.image_bytes() != dense_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("a read of ", read.image_bytes(), " bytes from a buffer of ", dense_bytes));
    }
    return *bytes;
  }
  if (read.image_bytes() > limits::kSimulatedBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("an image of ", read.image_bytes(), " bytes"));
  }
  LB_RETURN_IF_ERROR(CheckStrides(dims, strides, element_bytes, read.image_bytes()));
  std::string image(static_cast<size_t>(read.image_bytes()), '\0');
  CopyStrided(Data(image), strides, Data(*bytes), DenseStrides(dims, element_bytes), dims, element_bytes);
  return image;
}

void SimulatedShell::StartRead(const Read& read, bool) {
  absl::StatusOr<std::string> image = ReadImage(read);
  Post([this, id = read.read(), status = image.status(), bytes = image.ok() ? *std::move(image) : std::string()] {
    core_.OnReadDone(id, status, bytes, /*published=*/false, host_->now());
  });
}

}  // namespace landbridge
