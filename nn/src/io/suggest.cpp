#include <algorithm>
#include <tessera/core/error.hpp>
#include <tessera/nn/io/suggest.hpp>

namespace tessera::io {

int edit_distance(std::string_view a, std::string_view b) {
  // Optimal string alignment; rows i-2, i-1 and i of the table.
  std::vector<int> before(b.size() + 1), previous(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before.swap(previous);
    previous.swap(row);
    row[0] = static_cast<int>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const int change = a[i - 1] == b[j - 1] ? 0 : 1;
      row[j] = std::min({previous[j] + 1, row[j - 1] + 1, previous[j - 1] + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates) {
  constexpr std::size_t kLongest = 200;  // the table costs the product of the lengths
  if (name.size() > kLongest) return "";
  const std::string* best = nullptr;
  int best_distance = 0;
  const auto last_part = [](std::string_view key) { return key.substr(key.find_last_of('.') + 1); };
  for (const std::string& candidate : candidates) {
    if (candidate.size() > kLongest) continue;
    int distance = edit_distance(name, candidate);
    // A key in the wrong table is still the right word.
    distance = std::min(distance, 1 + edit_distance(last_part(name), last_part(candidate)));
    if (!best || distance < best_distance) {
      best = &candidate;
      best_distance = distance;
    }
  }
  const int limit = std::max(2, static_cast<int>(last_part(name).size()) / 3 + 1);
  if (!best || best_distance > limit) return "";
  return str(" Did you mean \"", *best, "\"?");
}

}  // namespace tessera::io
