#include "step_profiler.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <tessera/kernels/machine.hpp>
#include <tessera/nn/checkpoint.hpp>
#include <tessera/parallel/communicator.hpp>
#include <unordered_map>

#include "chrome_trace.hpp"
#include "profile_table.hpp"

namespace tessera::app {
namespace {

double now() {
  return std::chrono::duration<double>(Profile::Clock::now().time_since_epoch()).count();
}

void barrier(const Mesh& mesh) {
  if (mesh.size() > 1)
    parallel::barrier(parallel::Group::of(mesh, mesh.all_axes()), {"profile", {}, {}}).wait();
}

/// The axes along which two ranks of the mesh differ.
AxisMask axes_between(const Mesh& mesh, int a, int b) {
  AxisMask axes = 0;
  for (int axis = 0; axis < mesh.axis_count(); ++axis)
    if (mesh.coordinate(a, axis) != mesh.coordinate(b, axis)) axes |= AxisMask{1} << axis;
  return axes;
}

using Shares = std::map<std::string, double>;

/// How a call's time is shared out among the axes; the shares sum up to 1.
Shares shares_of(const Profile& profile,
                 const ProfileEvent& transfer,
                 const Mesh& mesh,
                 const std::unordered_map<int, int>& rank_of) {
  AxisMask all = 0;
  double bytes = 0.0;
  for (std::uint32_t i = 0; i < transfer.peer_count; ++i) {
    const ProfilePeer& peer = profile.peers()[transfer.first_peer + i];
    const auto it = rank_of.find(peer.process);
    if (it == rank_of.end()) return {{"other", 1.0}};
    all |= axes_between(mesh, mesh.rank(), it->second);
    bytes += static_cast<double>(peer.bytes);
  }
  if (bytes == 0.0) return {{axes_name(mesh, all), 1.0}};
  Shares shares;
  for (std::uint32_t i = 0; i < transfer.peer_count; ++i) {
    const ProfilePeer& peer = profile.peers()[transfer.first_peer + i];
    const AxisMask axes = axes_between(mesh, mesh.rank(), rank_of.at(peer.process));
    const double share = static_cast<double>(peer.bytes) / bytes;
    if (axes == 0) {
      shares["other"] += share;
      continue;
    }
    for (int axis = 0; axis < mesh.axis_count(); ++axis) {
      if ((axes >> axis & 1u) != 0)
        shares[mesh.axis_name(axis)] += share / __builtin_popcount(axes);
    }
  }
  return shares;
}

}  // namespace

std::string axes_name(const Mesh& mesh, AxisMask axes) {
  std::string text;
  for (int axis = 0; axis < mesh.axis_count(); ++axis) {
    if ((axes >> axis & 1u) == 0) continue;
    if (!text.empty()) text += '+';
    text += mesh.axis_name(axis);
  }
  return text.empty() ? "other" : text;
}

std::map<std::string, double> exposed_by_axes(const Profile& profile, const Mesh& mesh) {
  std::unordered_map<int, int> rank_of;
  for (int r = 0; r < mesh.size(); ++r) rank_of[mesh.process_of(r)] = r;
  std::unordered_map<std::uint64_t, const ProfileEvent*> transfers;
  for (const ProfileEvent& e : profile.events())
    if (e.kind == ProfileKind::kTransfer) transfers[e.sequence] = &e;
  Shares seconds;
  for (const ProfileEvent& e : profile.events()) {
    if (e.kind != ProfileKind::kWait) continue;
    const auto it = transfers.find(e.sequence);
    if (it == transfers.end()) {
      seconds["other"] += e.seconds;
      continue;
    }
    for (const auto& [axes, share] : shares_of(profile, *it->second, mesh, rank_of))
      seconds[axes] += share * e.seconds;
  }
  return seconds;
}

StepProfiler::StepProfiler(ProfileOptions options, const Mesh& mesh, std::int64_t total)
    : options_(std::move(options)), mesh_(mesh), skip_(std::clamp<std::int64_t>(total - 1, 0, 2)) {}

void StepProfiler::begin_step() {
  if (options_.dir.empty() || written_) return;
  if (seen_ == skip_) {
    barrier(mesh_);  // time 0 is the same on all ranks
    profile_.start();
    start_ = now();
  }
}

void StepProfiler::end_step() {
  if (options_.dir.empty() || written_) return;
  ++seen_;
  if (seen_ <= skip_) return;
  ++recorded_;
  if (recorded_ == options_.steps) write();
}

void StepProfiler::write() {
  const double seconds = now() - start_;
  profile_.stop();
  written_ = true;
  barrier(mesh_);
  const kernels::MachinePeak peak = kernels::measure_machine_peak();
  nn::collective(mesh_).together([&] {
    std::filesystem::create_directories(options_.dir);
    const auto save = [&](const std::string& name, const auto& fill) {
      const std::string path = options_.dir + "/" + name;
      std::ofstream out(path);
      fill(out);
      out.close();
      if (!out) throw IoError(str("profile: ", path, " cannot be written. Choose another place."));
    };
    save(str("rank", mesh_.rank(), ".json"),
         [&](std::ostream& out) { write_chrome_trace(out, profile_, mesh_.rank()); });
    if (mesh_.rank() != 0) return;
    table_ = profile_table(summarize(profile_), peak, seconds, recorded_);
    save("ops.txt", [&](std::ostream& out) { out << table_; });
  });
}

void StepProfiler::finish() {
  if (options_.dir.empty()) return;
  if (!written_ && recorded_ > 0) write();
  if (mesh_.rank() != 0 || !written_) return;
  std::cout << table_ << "traces: " << options_.dir
            << "/rank*.json (open in ui.perfetto.dev or chrome://tracing)\n"
            << std::flush;
}

}  // namespace tessera::app
