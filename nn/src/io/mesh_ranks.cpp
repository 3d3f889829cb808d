#include "io/mesh_ranks.hpp"

#include <algorithm>
#include <tessera/nn/checkpoint.hpp>
#include <tessera/parallel/communicator.hpp>

namespace tessera::io {
namespace {

using Bytes = std::vector<std::byte>;

std::vector<Bytes> exchange_bytes(const parallel::Group& group, const std::vector<Bytes>& to) {
  const parallel::CallInfo info = {.op = "file access", .layout = {}, .device = {}};
  const std::size_t ranks = to.size();
  std::vector<std::int64_t> out_bytes(ranks), in_bytes(ranks);
  std::transform(to.begin(), to.end(), out_bytes.begin(),
                 [](const Bytes& b) { return static_cast<std::int64_t>(b.size()); });
  const std::vector<std::int64_t> each(ranks, sizeof(std::int64_t));
  parallel::all_to_all(group, out_bytes.data(), each, in_bytes.data(), each, info).wait();
  const auto room = [](const std::vector<std::int64_t>& bytes) {
    std::int64_t sum = 0;
    for (const std::int64_t b : bytes) sum += b;
    return Bytes(static_cast<std::size_t>(sum));
  };
  Bytes out = room(out_bytes), in = room(in_bytes);
  auto at = out.begin();
  for (const Bytes& b : to) at = std::copy(b.begin(), b.end(), at);
  parallel::all_to_all(group, out.data(), out_bytes, in.data(), in_bytes, info).wait();
  std::vector<Bytes> from(ranks);
  auto begin = in.begin();
  for (std::size_t r = 0; r < ranks; ++r) {
    from[r].assign(begin, begin + in_bytes[r]);
    begin += in_bytes[r];
  }
  return from;
}

}  // namespace

MeshRanks::MeshRanks(const Mesh& mesh) : Collective(nn::collective(mesh)) {
  exchange = [](const std::vector<Bytes>& to) { return to; };
  if (size == 1) return;
  const parallel::Group group = parallel::Group::of(mesh, mesh.all_axes());
  exchange = [group](const std::vector<Bytes>& to) { return exchange_bytes(group, to); };
}

}  // namespace tessera::io
