#include "witness.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>
#include <tessera/parallel/failure.hpp>

#include "flight.hpp"
#include "report.hpp"

namespace tessera::parallel::witness {

namespace {

enum Phase { kStarting, kRunning, kEnding, kDone, kOver };

// How long the witness that reports stands in the way of others', in seconds.
constexpr unsigned kClaimSeconds = 3;
// Starting and finalising MPI take a moment where processes share cores.
constexpr double kLeastLimit = 10;

struct Note {
  std::uint64_t sequence = 0;
  std::int64_t amount = 0;
  CallKind kind = CallKind::kBarrier;
  DType dtype = DType::kUInt8;
  ReduceOp reduce = ReduceOp::kSum;
  std::array<char, 48> op{};
};

/// What a rank and its witness share. The rank may die between any two stores: the report is then
/// off by one call.
struct Page {
  std::atomic<int> phase{kStarting};
  std::atomic<int> rank{-1};
  std::atomic<int> count{0};
  std::atomic<bool> waits{false};
  Note last;
  Note awaited;
};

Page* page = nullptr;
pid_t child = 0;
int claim = -1;  // a socket; who has bound it reports

int launcher_connection() {
  const char* text = std::getenv("PMI_FD");
  if (text == nullptr) return -1;
  const int fd = std::atoi(text);
  return fd > 2 && fcntl(fd, F_GETFD) != -1 ? fd : -1;
}

double time_limit() {
  const char* text = std::getenv("TESSERA_TIMEOUT");
  char* end = nullptr;
  const double value = text != nullptr ? std::strtod(text, &end) : 300.0;
  if (end == text || !(value >= 0)) return 300.0;
  return value > 0 ? std::max(value, kLeastLimit) : 0.0;
}

// UCX aborts a process that reads the memory of one that was killed. The witness of that one is
// about to end the job with the report and its code; the launcher would put its own code in the
// place of that if this process died meanwhile. abort() goes on when the handler returns.
constexpr unsigned kAbortSeconds = 5;
void delay_abort(int) {
  for (unsigned left = kAbortSeconds; left > 0;) left = sleep(left);
}

// All processes that one launcher has started on this node agree about this name; it goes with the
// processes that hold it.
bool bind_claim() {
  if (claim < 0) return true;
  struct ucred launcher {};
  socklen_t size = sizeof(launcher);
  if (getsockopt(launcher_connection(), SOL_SOCKET, SO_PEERCRED, &launcher, &size) != 0) {
    launcher.pid = 0;
  }
  struct sockaddr_un name {};
  name.sun_family = AF_UNIX;
  const int length = std::snprintf(name.sun_path + 1, sizeof(name.sun_path) - 1,
                                   "tessera-report-%d", static_cast<int>(launcher.pid));
  const auto bytes = static_cast<socklen_t>(offsetof(struct sockaddr_un, sun_path)) + 1 +
                     static_cast<socklen_t>(length);
  if (bind(claim, reinterpret_cast<const struct sockaddr*>(&name), bytes) == 0) return true;
  return errno != EADDRINUSE && errno != EINVAL;
}

/// What the system tells of a process, see proc_pid_stat(5).
class Stat {
 public:
  explicit Stat(pid_t process) {
    std::array<char, 64> path{};
    std::snprintf(path.data(), path.size(), "/proc/%d/stat", static_cast<int>(process));
    const int fd = open(path.data(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    [[maybe_unused]] const ssize_t n = read(fd, text_.data(), text_.size() - 1);
    close(fd);
  }
  /// What follows `PID (name) `; null: unknown.
  const char* after_name() const {
    const char* const end = std::strrchr(text_.data(), ')');
    return end != nullptr && end[1] == ' ' ? end + 2 : nullptr;
  }
  const char* last_field() const { return std::strrchr(text_.data(), ' '); }

 private:
  std::array<char, 2048> text_{};
};

// The wait status of a process that has ended and that its parent, the launcher, has not yet asked
// for; -1: unknown.
int status_of(pid_t process) {
  const Stat stat(process);
  const char* const last = stat.last_field();
  return last != nullptr ? std::atoi(last) : -1;
}

/// Text in a buffer of its own: the witness was forked from a process that may have had threads, so
/// it does not allocate.
class Line {
 public:
  template <class... Args>
  void add(const char* format, Args... args) {
    const int n = std::snprintf(text_.data() + size_, text_.size() - size_, format, args...);
    if (n > 0) size_ = std::min(size_ + static_cast<std::size_t>(n), text_.size() - 1);
  }
  void add_call(const Note& note) {
    add("%s #%llu", name(note.kind), static_cast<unsigned long long>(note.sequence));
    if (note.kind == CallKind::kAllReduce || note.kind == CallKind::kReduceScatter) {
      add(" %s %s x %lld", name(note.reduce), name(note.dtype),
          static_cast<long long>(note.amount));
    } else if (note.amount > 0) {
      add(" of %lld bytes", static_cast<long long>(note.amount));
    }
    if (note.op[0] != '\0') add(" for %s", note.op.data());
  }
  void print() const {
    [[maybe_unused]] const ssize_t n = write(STDERR_FILENO, text_.data(), size_);
    wait_until_read(STDOUT_FILENO);
    wait_until_read(STDERR_FILENO);
  }

 private:
  std::array<char, 1024> text_{};
  std::size_t size_ = 0;
};

// After a report. The launcher may no longer listen to this rank (it has said goodbye inside
// MPI_Finalize) and its own SIGTERM does not end a stopped process: then nothing but this would.
[[noreturn]] void end_with_rank(pid_t rank) {
  sleep(kClaimSeconds);
  if (getppid() == rank) kill(rank, SIGKILL);
  _exit(0);
}

[[noreturn]] void end_job(const Line& report, pid_t rank) {
  report.print();
  const int launcher = launcher_connection();
  // What PMI_Abort of the PMI-1 protocol sends; a launcher that does not understand it ends the job
  // when the connection closes.
  std::array<char, 40> message{};
  const int n =
      std::snprintf(message.data(), message.size(), "cmd=abort exitcode=%d\n", kFailureExitCode);
  [[maybe_unused]] const ssize_t sent =
      send(launcher, message.data(), static_cast<std::size_t>(n), MSG_NOSIGNAL);
  // The launcher waits for the end of what it reads.
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO, launcher}) close(fd);
  end_with_rank(rank);
}

[[noreturn]] void report_death(pid_t rank) {
  if (page->phase == kDone) _exit(0);
  if (page->phase == kOver) {
    // The rank holds the claim, or another one does, and others may come late.
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO, launcher_connection()}) {
      close(fd);
    }
    sleep(kClaimSeconds);
    _exit(0);
  }
  const int status = status_of(rank);
  const bool exited = status >= 0 && WIFEXITED(status);
  if ((exited && WEXITSTATUS(status) == 0) || !bind_claim()) _exit(0);

  Line report;
  report.add("tessera: the job has failed\n  process ");
  if (page->rank >= 0) {
    report.add("%d of %d: ", page->rank.load(), page->count.load());
  } else {
    report.add("%s of %s: ", std::getenv("PMI_RANK") != nullptr ? std::getenv("PMI_RANK") : "?",
               std::getenv("PMI_SIZE") != nullptr ? std::getenv("PMI_SIZE") : "?");
  }
  if (exited) {
    report.add("exited with code %d before the end of the job", WEXITSTATUS(status));
  } else if (status >= 0 && WIFSIGNALED(status)) {
    const char* word = sigdescr_np(WTERMSIG(status));
    report.add("ended by signal %d (%s)", WTERMSIG(status), word != nullptr ? word : "unknown");
  } else {
    report.add("was killed, or crashed,");  // the launcher has asked for its status already
  }
  if (page->phase == kStarting) {
    report.add(" while the job started");
  } else if (page->phase == kEnding) {
    report.add(" while the job ended");
  } else if (page->waits) {
    report.add(" while it waited for ");
    report.add_call(page->awaited);
  } else if (page->last.sequence > 0) {
    report.add(" while it computed; its last call was ");
    report.add_call(page->last);
  } else {
    report.add(" while it computed; it had not communicated yet");
  }
  report.add(".\n");
  if (status >= 0 && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
    report.add(
        "  Signal 9 comes from a person, from the launcher, or from the system when memory runs "
        "out.\n");
  } else if (status >= 0 && WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) {
    report.add(
        "  Signal 15 comes from a person, or from the launcher when another process has ended.\n");
  }
  end_job(report, rank);
}

[[noreturn]] void report_delay(pid_t rank, double seconds) {
  const bool starting = page->phase == kStarting;
  if (!bind_claim()) end_with_rank(rank);
  Line report;
  report.add("tessera: no progress for %.0f s (TESSERA_TIMEOUT); the job ends\n", seconds);
  report.add("  a process waits for the others to %s MPI; one of them is stopped or gone\n",
             starting ? "start" : "finish with");
  end_job(report, rank);
}

// Whether a signal has stopped the process: its state, behind its name in parentheses.
bool is_stopped(pid_t process) {
  const Stat stat(process);
  const char* const state = stat.after_name();
  return state != nullptr && *state == 'T';
}

// The job is over, but for a process that cannot end: its launcher would wait for it for ever.
[[noreturn]] void report_stop(pid_t rank) {
  Line report;
  report.add("tessera: the job is done, but process %d is stopped; it is ended\n",
             page->rank.load());
  end_job(report, rank);
}

[[noreturn]] void watch(pid_t rank) {
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, nullptr);
  prctl(PR_SET_NAME, "tessera-witness");
  prctl(PR_SET_PDEATHSIG, SIGHUP);
  const double limit = time_limit();
  while (getppid() == rank) {
    // SIGUSR1: the phase has changed.
    const int phase = page->phase;
    const bool timed = limit > 0 && (phase == kStarting || phase == kEnding || phase == kDone);
    const auto seconds = static_cast<std::time_t>(limit + 1);
    const struct timespec time = {seconds, 0};
    const int signal = timed ? sigtimedwait(&all, nullptr, &time) : sigwaitinfo(&all, nullptr);
    if (signal >= 0 || errno != EAGAIN || page->phase != phase) continue;
    if (phase != kDone) report_delay(rank, limit + 1);
    if (is_stopped(rank)) report_stop(rank);
  }
  report_death(rank);
}

void set_phase(Phase phase) {
  if (page == nullptr) return;
  page->phase = phase;
  kill(child, SIGUSR1);
}

void fill(Note& note, const Record& call) {
  note.sequence = call.sequence;
  note.amount = call.amount;
  note.kind = call.kind;
  note.dtype = call.dtype;
  note.reduce = call.reduce;
  std::strncpy(note.op.data(), call.info.op != nullptr ? call.info.op : "", note.op.size() - 1);
}

}  // namespace

void start() {
  if (page != nullptr || launcher_connection() < 0) return;
  void* const memory =
      mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return;
  page = new (memory) Page;
  claim = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const pid_t self = getpid();
  child = fork();
  if (child == 0) watch(self);
  if (child < 0) page = nullptr;
}

void set_running() {
  if (page == nullptr) return;
  page->rank = process().rank;
  page->count = process().count;
  set_phase(kRunning);
  struct sigaction old {};
  if (sigaction(SIGABRT, nullptr, &old) == 0 && old.sa_handler == SIG_DFL && process().count > 1) {
    struct sigaction delay {};
    delay.sa_handler = delay_abort;
    sigaction(SIGABRT, &delay, nullptr);
  }
}

void set_ending() { set_phase(kEnding); }

void stop() {
  set_phase(kDone);
  page = nullptr;
  if (claim >= 0) close(claim);
}

void note_call(const Record& call) {
  if (page != nullptr) fill(page->last, call);
}

void note_wait(const Record* call) {
  if (page == nullptr) return;
  if (call != nullptr) fill(page->awaited, *call);
  page->waits = call != nullptr;
}

void claim_report() {
  if (page == nullptr) return;
  bind_claim();
  page->phase = kOver;
}

void leave_report_to_others() {
  if (page != nullptr) page->phase = kOver;
}

}  // namespace tessera::parallel::witness
