#pragma once

#include <string>
#include <string_view>

namespace tessera::parallel {

/// Exit code of a job that failed.
inline constexpr int kFailureExitCode = 70;

/// Tells all other processes that this one cannot go on: whatever they wait for throws CommError
/// naming this process and `what`. Afterwards every call to communicate throws, here and there.
/// Does not throw itself.
void fail_job(std::string_view what);

/// Whether this or another process has failed.
bool job_failed();
/// `rank 3: disk full`; empty while nothing has failed.
std::string failure_text();

/// Prints one report for the whole job and ends it with kFailureExitCode. The lowest process that
/// answers reports.
[[noreturn]] void end_failed_job();

}  // namespace tessera::parallel
