// Communicator over TCP: collectives as messages between all pairs, sums in rank order.
#include "comm/socket_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "comm/collectives.h"

namespace dsv4::comm {
namespace {

using Piece = SocketMesh::Piece;

// Up to so many bytes every rank adds up everything: one exchange instead of two.
constexpr size_t kMaxGatheredBytes = size_t{32} << 10;

std::byte* Writable(const std::byte* data) {
  return const_cast<std::byte*>(data);
}  // Sent memory is only read.
ByteRows OneRow(std::span<const std::byte> data) {
  const auto bytes = static_cast<int64_t>(data.size());
  return {.data = Writable(data.data()), .num_rows = 1, .row_bytes = bytes, .stride = bytes};
}
ByteRows Columns(const std::byte* data, int64_t first, int64_t num_rows, int64_t row_bytes, int64_t stride) {
  return {.data = Writable(data) + first, .num_rows = num_rows, .row_bytes = row_bytes, .stride = stride};
}
void Copy(const ByteRows& to, const ByteRows& from) {
  for (int64_t row = 0; from.row_bytes > 0 && row < from.num_rows; ++row) {
    std::memmove(to.data + row * to.stride, from.data + row * from.stride,
                 static_cast<size_t>(from.row_bytes));
  }
}

class SocketGroup final : public Communicator {
 public:
  // `members`: ranks of the mesh. `id` is that of the whole's calls that led to it, the same on all of them.
  SocketGroup(std::shared_ptr<SocketMesh> mesh, std::vector<int> members, uint64_t id)
      : mesh_(std::move(mesh)),
        members_(std::move(members)),
        rank_(static_cast<int>(std::ranges::find(members_, mesh_->rank()) - members_.begin())),
        id_(id) {}

  ~SocketGroup() override {
    if (id_ == kWhole) mesh_->Leave();
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }

  Status Barrier(Wait wait) override {
    return WithAll(
        FrameKind::kBarrier, [](int) { return ByteRows{}; }, [](int) { return ByteRows{}; }, wait);
  }

  Status Broadcast(std::span<std::byte> data, int root, Wait wait) override {
    DSV4_CHECK(0 <= root && root < size()) << root;
    if (data.empty()) return mesh_->Failure();
    std::vector<Piece> pieces;
    if (rank_ != root) {
      pieces = {{members_[At(root)], OneRow(data)}};
      return mesh_->Exchange(FrameKind::kBroadcast, id_, {}, pieces, wait);
    }
    for (int r = 0; r < size(); ++r) {
      if (r != rank_) pieces.push_back({members_[At(r)], OneRow(data)});
    }
    return mesh_->Exchange(FrameKind::kBroadcast, id_, pieces, {}, wait);
  }

  Status AllGather(std::span<const std::byte> mine, int64_t num_rows, std::span<const int64_t> row_bytes,
                   std::span<std::byte> all) override {
    const std::vector<int64_t> begins = Begins(row_bytes);
    const int64_t stride = begins.back();
    DSV4_CHECK(static_cast<int64_t>(all.size()) == stride * num_rows)
        << all.size() << " of " << stride * num_rows;
    DSV4_CHECK(static_cast<int64_t>(mine.size()) == row_bytes[At(rank_)] * num_rows) << mine.size();
    if (all.empty()) return mesh_->Failure();
    const auto place = [&](int r) {
      return Columns(all.data(), begins[At(r)], num_rows, row_bytes[At(r)], stride);
    };
    Copy(place(rank_), Columns(mine.data(), 0, num_rows, row_bytes[At(rank_)], row_bytes[At(rank_)]));
    return WithAll(
        FrameKind::kAllGather, [&](int) { return OneRow(mine); }, place);
  }

  Status AllToAll(std::span<const std::byte> mine, int64_t num_rows, std::span<const int64_t> row_bytes,
                  std::span<std::byte> parts) override {
    const std::vector<int64_t> begins = Begins(row_bytes);
    const int64_t stride = begins.back();
    const int64_t my_bytes = row_bytes[At(rank_)];
    DSV4_CHECK(static_cast<int64_t>(mine.size()) == stride * num_rows)
        << mine.size() << " of " << stride * num_rows;
    DSV4_CHECK(static_cast<int64_t>(parts.size()) == size() * my_bytes * num_rows) << parts.size();
    if (mine.empty()) return mesh_->Failure();
    const auto columns = [&](int r) {
      return Columns(mine.data(), begins[At(r)], num_rows, row_bytes[At(r)], stride);
    };
    const auto part = [&](int r) {
      return Columns(parts.data(), r * num_rows * my_bytes, num_rows, my_bytes, my_bytes);
    };
    Copy(part(rank_), columns(rank_));
    return WithAll(FrameKind::kAllToAll, columns, part);
  }

  Status AllReduceSum(std::span<float> values) override {
    if (values.empty()) return mesh_->Failure();
    if (size() <= 2 || values.size_bytes() <= kMaxGatheredBytes) {
      scratch_.resize(At(size()) * values.size());
      DSV4_RETURN_IF_ERROR(WithAll(
          FrameKind::kAllReduce, [&](int) { return OneRow(std::as_bytes(values)); },
          [&](int r) { return Scratch(r, values.size()); }));
      SumInRankOrder(values, values);
      return {};
    }
    // Every rank adds up a piece, and all get the pieces.
    std::vector<int64_t> counts;
    const auto count = static_cast<int64_t>(values.size());
    for (int64_t r = 0; r < size(); ++r) counts.push_back(count * (r + 1) / size() - count * r / size());
    const std::vector<int64_t> begins = Begins(counts);
    const auto piece = [&](int r) { return values.subspan(At(begins[At(r)]), At(counts[At(r)])); };
    DSV4_RETURN_IF_ERROR(SumPiece(FrameKind::kAllReduce, piece, piece(rank_)));
    return WithAll(
        FrameKind::kAllReduce, [&](int) { return OneRow(std::as_bytes(piece(rank_))); },
        [&](int r) { return OneRow(std::as_bytes(piece(r))); });
  }

  Status ReduceScatterSum(std::span<const float> values, std::span<const int64_t> counts,
                          std::span<float> mine) override {
    const std::vector<int64_t> begins = Begins(counts);
    DSV4_CHECK(static_cast<int64_t>(mine.size()) == counts[At(rank_)]) << mine.size();
    DSV4_CHECK(static_cast<int64_t>(values.size()) == begins.back())
        << values.size() << " of " << begins.back();
    if (values.empty()) return mesh_->Failure();
    return SumPiece(
        FrameKind::kReduceScatter,
        [&](int r) { return values.subspan(At(begins[At(r)]), At(counts[At(r)])); }, mine);
  }

  Status Send(std::span<const std::byte> data, int to) override {
    DSV4_CHECK(0 <= to && to < size() && to != rank_) << to;
    const Piece piece = {members_[At(to)], OneRow(data)};
    return mesh_->Exchange(FrameKind::kSend, id_, {&piece, 1}, {}, Wait::kDeadline);
  }
  Status Recv(std::span<std::byte> data, int from) override {
    DSV4_CHECK(0 <= from && from < size() && from != rank_) << from;
    const Piece piece = {members_[At(from)], OneRow(data)};
    return mesh_->Exchange(FrameKind::kSend, id_, {}, {&piece, 1}, Wait::kDeadline);
  }

  Status Check() override { return mesh_->Check(); }
  void Fail(const Status& why) override {
    (void)mesh_->Fail(why.WithContext(fmt::format("rank {}", mesh_->rank())));
  }

  Result<std::unique_ptr<Communicator>> Split(int colour) override {
    DSV4_ASSIGN_OR_RETURN(const std::vector<int> colours, GatherValues(*this, colour));
    std::vector<int> part;
    for (size_t r = 0; r < members_.size(); ++r) {
      if (colours[r] == colour) part.push_back(members_[r]);
    }
    // Parts of one call differ by their first member.
    const uint64_t id = (id_ * 64 + ++num_splits_) * 64 + static_cast<uint64_t>(part.front());
    return std::make_unique<SocketGroup>(mesh_, std::move(part), id);
  }

  static constexpr uint64_t kWhole = 1;

 private:
  template <typename Number>
  static size_t At(Number r) {
    return static_cast<size_t>(r);
  }

  std::vector<int64_t> Begins(std::span<const int64_t> counts) const {
    DSV4_CHECK(static_cast<int>(counts.size()) == size()) << counts.size() << " of " << size();
    std::vector<int64_t> begins(counts.size() + 1, 0);
    std::partial_sum(counts.begin(), counts.end(), begins.begin() + 1);
    return begins;
  }

  // All ranks with all ranks: to(r) goes to rank r and from(r) comes from it.
  template <typename To, typename From>
  Status WithAll(FrameKind kind, const To& to, const From& from, Wait wait = Wait::kDeadline) {
    std::vector<Piece> out;
    std::vector<Piece> in;
    for (int i = 1; i < size(); ++i) {
      const int r = (rank_ + i) % size();  // Not all to the same one first.
      out.push_back({members_[At(r)], to(r)});
      in.push_back({members_[At(r)], from(r)});
    }
    return mesh_->Exchange(kind, id_, out, in, wait);
  }

  ByteRows Scratch(int r, size_t count) {
    return OneRow(std::as_bytes(std::span(scratch_).subspan(At(r) * count, count)));
  }
  // out = the sums of all ranks' numbers: those of others in scratch_, mine in `mine`, which may be `out`.
  void SumInRankOrder(std::span<const float> mine, std::span<float> out) {
    const auto part = [&](int r) { return r == rank_ ? mine.data() : scratch_.data() + At(r) * out.size(); };
    for (size_t i = 0; i < out.size(); ++i) {
      float sum = part(0)[i];
      for (int r = 1; r < size(); ++r) sum += part(r)[i];
      out[i] = sum;
    }
  }
  // `out` = the sum of every rank's piece(this rank).
  template <typename PieceOf>
  Status SumPiece(FrameKind kind, const PieceOf& piece, std::span<float> out) {
    scratch_.resize(At(size()) * out.size());
    DSV4_RETURN_IF_ERROR(WithAll(
        kind, [&](int r) { return OneRow(std::as_bytes(piece(r))); },
        [&](int r) { return Scratch(r, out.size()); }));
    SumInRankOrder(piece(rank_), out);
    return {};
  }

  std::shared_ptr<SocketMesh> mesh_;
  std::vector<int> members_;
  int rank_;
  uint64_t id_;
  uint64_t num_splits_ = 0;
  std::vector<float> scratch_;
};

}  // namespace

std::unique_ptr<Communicator> MakeSocketGroup(std::vector<Link> links, int rank,
                                              std::chrono::milliseconds timeout) {
  std::vector<int> members(links.size());
  std::iota(members.begin(), members.end(), 0);
  return std::make_unique<SocketGroup>(std::make_shared<SocketMesh>(std::move(links), rank, timeout),
                                       std::move(members), SocketGroup::kWhole);
}

}  // namespace dsv4::comm
