#pragma once

#include <exception>
#include <string>
#include <string_view>

namespace tessera::parallel {

/// Exit code of a job that failed for no reason that has a code of its own.
inline constexpr int kFailureExitCode = 70;

/// An error of a kind that has an exit code of its own.
class HasExitCode {
 public:
  virtual ~HasExitCode() = default;
  virtual int exit_code() const = 0;
};

/// The code with which a program ends that `error` ends (as in sysexits.h): its own (HasExitCode),
/// 2 for a UsageError, 74 for an IoError, kFailureExitCode for all others.
int exit_code(const std::exception& error);

/// Tells all other processes that this one cannot go on: whatever they wait for throws CommError
/// naming this process and `what`. Afterwards every call to communicate throws, here and there.
/// `exit_code` travels along: the job ends with it. Does not throw itself.
void fail_job(std::string_view what, int exit_code = kFailureExitCode);

/// Whether this or another process has failed.
bool job_failed();
/// `rank 3: disk full`; empty while nothing has failed.
std::string failure_text();

/// Ends the whole job with one report and the exit code of the lowest process that failed. Where
/// all processes failed alike, the report is that one text. The lowest process that answers
/// reports.
[[noreturn]] void end_failed_job();

}  // namespace tessera::parallel
