#include "large_blocks.hpp"

#include <sys/mman.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <iterator>

namespace tessera {

namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

constexpr std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

}  // namespace

bool LargeBlocks::reserve(std::size_t bytes) {
  struct sysinfo info {};
  sysinfo(&info);
  // Addresses only. More than there is memory, since holes that were dropped keep theirs.
  const std::size_t memory = static_cast<std::size_t>(info.totalram) * info.mem_unit;
  for (std::size_t size = round_up(std::max(4 * memory, bytes), kHugePage); size >= bytes;
       size = round_up(size / 2, kHugePage)) {
    void* const raw = mmap(nullptr, size + kHugePage, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw != MAP_FAILED) {
      const auto address = reinterpret_cast<std::uintptr_t>(raw);
      base_ = static_cast<std::byte*>(raw) + (round_up(address, kHugePage) - address);
      reserved_ = size;
      // One fault per 2 MiB of new memory instead of 512.
      madvise(base_, size, MADV_HUGEPAGE);
      return true;
    }
    if (size <= kHugePage) break;
  }
  return false;
}

bool LargeBlocks::grow(std::size_t bytes) {
  if (base_ == nullptr && !reserve(bytes)) return false;
  if (bytes > reserved_ - end_ || mprotect(base_ + end_, bytes, PROT_READ | PROT_WRITE) != 0)
    return false;
  end_ += bytes;
  return true;
}

std::byte* LargeBlocks::take(std::size_t bytes) {
  auto best = holes_.end();
  for (auto it = holes_.begin(); it != holes_.end(); ++it)
    if (it->second.size >= bytes && (best == holes_.end() || it->second.size < best->second.size))
      best = it;
  if (best == holes_.end()) {
    // The last hole grows, if there is one at the end.
    const auto last = holes_.empty() ? holes_.end() : std::prev(holes_.end());
    const bool extends = last != holes_.end() && last->first + last->second.size == end_;
    const std::size_t offset = extends ? last->first : end_;
    if (!grow(bytes - (end_ - offset))) return nullptr;
    if (extends) {
      resident_ -= static_cast<std::int64_t>(last->second.resident);
      holes_.erase(last);
    }
    return base_ + offset;
  }
  const std::size_t offset = best->first;
  Hole rest = best->second;
  holes_.erase(best);
  resident_ -= static_cast<std::int64_t>(rest.resident);
  rest.resident = std::min(rest.resident, rest.size - bytes);
  rest.size -= bytes;
  if (rest.size > 0) {
    resident_ += static_cast<std::int64_t>(rest.resident);
    holes_.emplace(offset + bytes, rest);
  }
  return base_ + offset;
}

void LargeBlocks::give_back(std::byte* block, std::size_t bytes) {
  auto offset = static_cast<std::size_t>(block - base_);
  Hole hole{bytes, bytes};
  resident_ += static_cast<std::int64_t>(bytes);
  const auto join = [&](Holes::iterator it) {
    hole.size += it->second.size;
    hole.resident += it->second.resident;
    offset = std::min(offset, it->first);
    holes_.erase(it);
  };
  auto next = holes_.lower_bound(offset);
  if (next != holes_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second.size == offset) join(before);
  }
  next = holes_.upper_bound(offset);
  if (next != holes_.end() && next->first == offset + hole.size) join(next);
  holes_.emplace(offset, hole);
}

void LargeBlocks::drop_holes(std::int64_t bytes) {
  while (resident_ > std::max<std::int64_t>(bytes, 0)) {
    const auto largest = std::max_element(
        holes_.begin(), holes_.end(),
        [](const auto& a, const auto& b) { return a.second.resident < b.second.resident; });
    Hole& hole = largest->second;
    // From the end, where best fit comes last; what is left of the hole is taken to be the resident
    // part.
    const auto excess = static_cast<std::size_t>(resident_ - std::max<std::int64_t>(bytes, 0));
    const std::size_t keep =
        excess < hole.resident ? (hole.resident - excess) / kGranule * kGranule : 0;
    madvise(base_ + largest->first + keep, hole.size - keep, MADV_DONTNEED);
    resident_ -= static_cast<std::int64_t>(hole.resident - keep);
    hole.resident = keep;
  }
}

}  // namespace tessera
