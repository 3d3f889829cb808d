#include <ctime>
#include <tessera/core/error.hpp>
#include <tessera/core/profile.hpp>

namespace tessera {

Profile::Profile(Scope scope) : scope_(scope), texts_(1) { numbers_[""] = 0; }

Profile::~Profile() { stop(); }

void Profile::start() {
  if (detail::active_profile == this) return;
  if (detail::active_profile != nullptr) {
    throw UsageError("profile: another one records already. Stop it first.");
  }
  if (!started_) origin_ = Clock::now();
  started_ = true;
  detail::active_profile = this;
}

void Profile::stop() {
  if (detail::active_profile == this) detail::active_profile = nullptr;
}

std::uint32_t Profile::text(std::string_view text) {
  const auto [it, added] =
      numbers_.try_emplace(std::string(text), static_cast<std::uint32_t>(texts_.size()));
  if (added) texts_.emplace_back(text);
  return it->second;
}

std::uint32_t Profile::text(std::uint64_t key, const std::function<std::string()>& make) {
  const auto it = by_key_.find(key);
  if (it != by_key_.end()) return it->second;
  return by_key_[key] = text(make());
}

double process_cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace tessera
