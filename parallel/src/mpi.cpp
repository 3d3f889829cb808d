#include "mpi.hpp"

#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <tessera/core/error.hpp>

#include "witness.hpp"

namespace tessera::parallel::mpi {

namespace {

static_assert(std::is_same_v<MPI_Request, Handle>, "MPICH's requests are ints");
static_assert(MPI_REQUEST_NULL == kNone);

struct ControlSend {
  MPI_Request request = MPI_REQUEST_NULL;
  Control message;
};

struct State {
  std::array<MPI_Comm, kChannels> channels{};
  MPI_Comm control = MPI_COMM_NULL;
  MPI_Request control_request = MPI_REQUEST_NULL;
  Control control_message;
  std::deque<ControlSend> control_sends;
  std::vector<MPI_Status> statuses;
  std::vector<int> indices;
  // MPI_Testsome reports to these two communicators; their handlers before we came.
  std::array<MPI_Errhandler, 2> handlers{};
  bool owned = false;
};
State* state = nullptr;

constexpr std::array kReporting{MPI_COMM_WORLD, MPI_COMM_SELF};

void check(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw CommError(str(what, ": MPI failed (", text.data(), "). See the text of the MPI library."));
}

// Creating communicators is collective; done with test and yield, since a blocking call costs
// milliseconds when there are more processes than cores.
MPI_Comm duplicate(MPI_Comm from) {
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Comm_idup(from, &comm, &request), "start");
  for (int done = 0; done == 0; sched_yield()) {
    check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "start");
  }
  check(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "start");
  return comm;
}

void post_control() {
  check(MPI_Irecv(&state->control_message, sizeof(Control), MPI_BYTE, MPI_ANY_SOURCE, 0,
                  state->control, &state->control_request),
        "control");
}

MPI_Comm comm_of(Channel channel) { return state->channels[static_cast<std::size_t>(channel)]; }

template <std::size_t n>
void copy_text(std::array<char, n>& to, std::string_view from) {
  const std::size_t length = std::min(from.size(), n - 1);
  std::memcpy(to.data(), from.data(), length);
  to[length] = '\0';
}

}  // namespace

void Control::set_text(std::string_view what) { copy_text(text, what); }
void Control::set_place(std::string_view what) { copy_text(place, what); }

std::string version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string_view all(text.data(), static_cast<std::size_t>(length));
  std::string line(all.substr(0, all.find('\n')));
  std::replace(line.begin(), line.end(), '\t', ' ');
  while (!line.empty() && (line.back() == ' ' || line.back() == '\0')) line.pop_back();
  return line;
}

Started start(int* argc, char*** argv) {
  if (version().find("MPICH") == std::string::npos) {
    throw CommError(str(
        "start: the MPI library is '", version(),
        "' (the program was built for MPICH). Start it with mpiexec.mpich and MPICH's libmpich."));
  }
  int initialised = 0;
  MPI_Initialized(&initialised);
  bool owned = false;
  if (initialised == 0) {
    witness::start();
    int provided = MPI_THREAD_SINGLE;
    check(MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided), "start");
    owned = true;
  }
  state = new State;
  state->owned = owned;
  for (std::size_t i = 0; i < kReporting.size(); ++i) {
    check(MPI_Comm_get_errhandler(kReporting[i], &state->handlers[i]), "start");
    check(MPI_Comm_set_errhandler(kReporting[i], MPI_ERRORS_RETURN), "start");
  }

  Started result;
  result.owned = owned;
  check(MPI_Comm_rank(MPI_COMM_WORLD, &result.process.rank), "start");
  check(MPI_Comm_size(MPI_COMM_WORLD, &result.process.count), "start");
  void* limit = nullptr;
  int found = 0;
  check(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&limit), &found), "start");
  if (found == 0 || *static_cast<int*>(limit) < kMaxTag) {
    throw CommError(
        "start: the MPI library offers too few tags (Tessera needs 2^27). Use MPICH 4.0 or newer.");
  }
  MPI_Comm node = MPI_COMM_NULL;
  check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node),
        "start");
  check(MPI_Comm_size(node, &result.local.processes), "start");
  result.local.cores = own_cores();
  check(MPI_Allreduce(MPI_IN_PLACE, result.local.cores.data(),
                      static_cast<int>(result.local.cores.size()), MPI_UINT64_T, MPI_BOR, node),
        "start");
  check(MPI_Comm_free(&node), "start");
  for (MPI_Comm& channel : state->channels) channel = duplicate(MPI_COMM_WORLD);
  state->control = duplicate(MPI_COMM_WORLD);
  post_control();
  return result;
}

void stop() {
  if (state == nullptr) return;
  if (state->control_request != MPI_REQUEST_NULL) {
    MPI_Cancel(&state->control_request);
    MPI_Wait(&state->control_request, MPI_STATUS_IGNORE);
  }
  for (MPI_Comm& channel : state->channels) MPI_Comm_free(&channel);
  MPI_Comm_free(&state->control);
  for (std::size_t i = 0; i < kReporting.size(); ++i) {
    MPI_Comm_set_errhandler(kReporting[i], state->handlers[i]);
    MPI_Errhandler_free(&state->handlers[i]);
  }
  const bool owned = state->owned;
  delete state;
  state = nullptr;
  if (owned) MPI_Finalize();
}

bool active() { return state != nullptr; }

Handle isend(const void* data, std::int64_t bytes, int peer, int tag, Channel channel) {
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Isend_c(data, bytes, MPI_BYTE, peer, tag, comm_of(channel), &request), "send");
  return request;
}

Handle irecv(void* data, std::int64_t bytes, int peer, int tag, Channel channel) {
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Irecv_c(data, bytes, MPI_BYTE, peer, tag, comm_of(channel), &request), "receive");
  return request;
}

void test_some(std::span<Handle> handles, std::vector<Completion>& done) {
  const std::size_t n = handles.size();
  if (state->statuses.size() < n) {
    state->statuses.resize(n);
    state->indices.resize(n);
  }
  MPI_Status* statuses = state->statuses.data();
  for (std::size_t i = 0; i < n; ++i) statuses[i].MPI_ERROR = MPI_SUCCESS;
  int count = 0;
  const int code =
      MPI_Testsome(static_cast<int>(n), handles.data(), &count, state->indices.data(), statuses);
  if (count == MPI_UNDEFINED) return;
  if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) check(code, "test");
  for (int k = 0; k < count; ++k) {
    MPI_Status& status = statuses[k];
    MPI_Count bytes = -1;
    if (code == MPI_SUCCESS || status.MPI_ERROR == MPI_SUCCESS) {
      check(MPI_Get_elements_x(&status, MPI_BYTE, &bytes), "test");
    }
    done.push_back({state->indices[static_cast<std::size_t>(k)], bytes});
  }
}

std::optional<Unexpected> unexpected(Channel channel) {
  if (state == nullptr) return std::nullopt;
  int found = 0;
  MPI_Status status;
  check(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_of(channel), &found, &status), "test");
  if (found == 0) return std::nullopt;
  MPI_Count bytes = 0;
  check(MPI_Get_elements_x(&status, MPI_BYTE, &bytes), "test");
  return Unexpected{status.MPI_SOURCE, status.MPI_TAG, bytes};
}

void send_control(int peer, const Control& message) {
  auto& sends = state->control_sends;
  while (!sends.empty()) {
    int done = 0;
    if (MPI_Test(&sends.front().request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done == 0)
      break;
    sends.pop_front();
  }
  sends.push_back({MPI_REQUEST_NULL, message});
  check(MPI_Isend(&sends.back().message, sizeof(Control), MPI_BYTE, peer, 0, state->control,
                  &sends.back().request),
        "control");
}

bool receive_control(Control& message) {
  int done = 0;
  check(MPI_Test(&state->control_request, &done, MPI_STATUS_IGNORE), "control");
  if (done == 0) return false;
  message = state->control_message;
  post_control();
  return true;
}

void abort(int code) {
  std::fflush(nullptr);
  int finalised = 0;
  MPI_Finalized(&finalised);
  if (state != nullptr && finalised == 0) MPI_Abort(MPI_COMM_WORLD, code);
  std::_Exit(code);
}

}  // namespace tessera::parallel::mpi
