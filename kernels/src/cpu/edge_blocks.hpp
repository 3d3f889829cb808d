#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tessera::kernels::cpu {

struct Range {
  std::int64_t begin, end;
  std::int64_t size() const { return end - begin; }
};

/// How a convolution takes its edges: in blocks of consecutive ones. A task is some blocks of whole
/// receivers, which one thread works on in order.
struct EdgeBlocks {
  std::vector<Range> blocks;     ///< of edges
  std::vector<Range> tasks;      ///< of blocks
  std::size_t early_tasks = 0;   ///< the first ones, which have no sender from `own_rows` on
  std::int64_t most_blocks = 0;  ///< of a task

  /// Blocks of at most `size` edges. `split`: receivers with senders from `own_rows` on come last.
  EdgeBlocks(const std::vector<std::int32_t>& senders,
             const std::vector<std::int32_t>& receivers,
             std::int64_t size,
             bool split,
             std::int64_t own_rows) {
    const auto edges = static_cast<std::int64_t>(receivers.size());
    const auto add_phase = [&](bool late) {
      std::int64_t begin = 0;
      for (std::int64_t e = 0, end = 0; e < edges; e = end) {
        const auto first = receivers.begin() + e;
        end = std::find_if(first, receivers.end(), [&](std::int32_t r) { return r != *first; }) -
              receivers.begin();
        const bool taken =
            !split || late == std::any_of(senders.begin() + e, senders.begin() + end,
                                          [&](std::int32_t s) { return s >= own_rows; });
        if (taken && end - begin <= size) continue;
        if (e > begin) add({begin, e}, size);
        begin = taken ? e : end;
      }
      if (begin < edges) add({begin, edges}, size);
    };
    add_phase(false);
    early_tasks = tasks.size();
    if (split) add_phase(true);
  }

 private:
  void add(Range edges, std::int64_t size) {
    const auto first = static_cast<std::int64_t>(blocks.size());
    const std::int64_t parts = (edges.size() + size - 1) / size;
    for (std::int64_t i = 0; i < parts; ++i)
      blocks.push_back(
          {edges.begin + edges.size() * i / parts, edges.begin + edges.size() * (i + 1) / parts});
    tasks.push_back({first, first + parts});
    most_blocks = std::max(most_blocks, parts);
  }
};

}  // namespace tessera::kernels::cpu
