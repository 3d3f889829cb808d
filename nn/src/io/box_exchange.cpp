#include "io/box_exchange.hpp"

#include <algorithm>
#include <cstring>

#include "io/convert.hpp"
#include "io/part_file.hpp"

namespace tessera::io {
namespace {

using Bytes = std::vector<std::byte>;

Box within(const Box& outer, Box box) {
  for (int d = 0; d < box.dims(); ++d)
    box.set(d, {box.lo[d] - outer.lo[d], box.hi[d] - outer.lo[d]});
  return box;
}

}  // namespace

std::vector<Box> all_boxes(const Collective& ranks, const Box& mine) {
  const int dims = mine.dims();
  const auto each = static_cast<std::size_t>(2 * dims);
  std::vector<std::int64_t> numbers(each * static_cast<std::size_t>(ranks.size), 0);
  std::int64_t* const own = numbers.data() + each * static_cast<std::size_t>(ranks.rank);
  std::copy(mine.lo.begin(), mine.lo.end(), own);
  std::copy(mine.hi.begin(), mine.hi.end(), own + dims);
  if (ranks.size > 1) ranks.sum(numbers);
  std::vector<Box> boxes;
  for (std::size_t r = 0; r < static_cast<std::size_t>(ranks.size); ++r) {
    const std::span<const std::int64_t> all(numbers);
    boxes.emplace_back(Dims(all.subspan(r * each, each / 2)),
                       Dims(all.subspan(r * each + each / 2, each / 2)));
  }
  return boxes;
}

Bytes dense_part(const char* op, const Box& whole, const View& view, const Box& box, DType dtype) {
  Bytes bytes(static_cast<std::size_t>(box.volume()) * size_of(dtype));
  std::byte* to = bytes.data();
  if (box.empty()) return bytes;
  const View part = view.slice(within(whole, box));
  for_each_run(op, part.shape, Box::whole(part.shape), part, dtype,
               [&](std::byte* elements, std::int64_t, std::int64_t count) {
                 const std::size_t n = static_cast<std::size_t>(count) * size_of(dtype);
                 std::memcpy(to, elements, n);
                 to += n;
               });
  return bytes;
}

Bytes fetch_box(const char* op,
                const MeshRanks& ranks,
                const std::vector<Box>& held,
                const View& mine,
                DType dtype,
                const std::vector<Box>& wanted) {
  const auto size = static_cast<std::size_t>(ranks.size);
  const auto here = static_cast<std::size_t>(ranks.rank);
  std::vector<Bytes> to(size);
  for (std::size_t r = 0; r < size; ++r)
    to[r] = dense_part(op, held[here], mine, intersect(held[here], wanted[r]), dtype);
  const std::vector<Bytes> from = ranks.exchange(to);
  Bytes result(static_cast<std::size_t>(wanted[here].volume()) * size_of(dtype));
  View view = View::dense(result.data(), dtype, wanted[here].shape());
  for (std::size_t r = 0; r < size; ++r) {
    const Box box = intersect(held[r], wanted[here]);
    if (box.empty()) continue;
    const View target = view.slice(within(wanted[here], box));
    const BoxRows rows(op, target.shape, Box::whole(target.shape), target);
    rows.for_each([&](std::int64_t at, std::int64_t offset) {
      convert(from[r].data() + static_cast<std::size_t>(at) * size_of(dtype), dtype, 1,
              target.as<std::byte>() + offset * static_cast<std::int64_t>(size_of(dtype)), dtype,
              rows.view_stride(), rows.row_length());
    });
  }
  return result;
}

Bytes fetch_rows(const char* op,
                 const MeshRanks& ranks,
                 const std::vector<Box>& held,
                 const View& mine,
                 DType dtype,
                 const std::vector<std::int64_t>& rows) {
  const auto size = static_cast<std::size_t>(ranks.size);
  const Box& own = held[static_cast<std::size_t>(ranks.rank)];
  std::int64_t per_row = static_cast<std::int64_t>(tessera::size_of(dtype));
  for (int d = 1; d < own.dims(); ++d)
    per_row *=
        std::max_element(held.begin(), held.end(),
                         [&](const Box& a, const Box& b) { return a[d].size() < b[d].size(); })
            ->
            operator[](d)
            .size();
  const auto owner_of = [&](std::int64_t row) {
    std::size_t r = 0;
    while (r < size && (row < held[r].lo[0] || row >= held[r].hi[0])) ++r;
    if (r == size) throw UsageError(str(op, ": row ", row, " does not exist."));
    return r;
  };
  std::vector<Bytes> questions(size);
  std::vector<std::size_t> owners;
  for (const std::int64_t row : rows) {
    const std::size_t r =
        owners.empty() || row < held[owners.back()].lo[0] || row >= held[owners.back()].hi[0]
            ? owner_of(row)
            : owners.back();
    owners.push_back(r);
    const auto* bytes = reinterpret_cast<const std::byte*>(&row);
    questions[r].insert(questions[r].end(), bytes, bytes + sizeof(row));
  }
  const std::vector<Bytes> asked = ranks.exchange(questions);
  std::vector<Bytes> answers(size);
  for (std::size_t r = 0; r < size; ++r) {
    for (std::size_t i = 0; i < asked[r].size(); i += sizeof(std::int64_t)) {
      std::int64_t row = 0;
      std::memcpy(&row, asked[r].data() + i, sizeof(row));
      Box box = own;
      box.set(0, {row, row + 1});
      const Bytes values = dense_part(op, own, mine, box, dtype);
      answers[r].insert(answers[r].end(), values.begin(), values.end());
    }
  }
  const std::vector<Bytes> got = ranks.exchange(answers);
  std::vector<std::size_t> next(size, 0);
  Bytes result;
  result.reserve(rows.size() * static_cast<std::size_t>(per_row));
  for (const std::size_t r : owners) {
    const std::byte* const from = got[r].data() + next[r];
    result.insert(result.end(), from, from + per_row);
    next[r] += static_cast<std::size_t>(per_row);
  }
  return result;
}

}  // namespace tessera::io
