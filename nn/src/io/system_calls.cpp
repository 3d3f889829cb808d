#include "io/system_calls.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>

namespace tessera::io {
namespace {

SystemCalls the_system;
std::atomic<SystemCalls*> in_use{&the_system};

}  // namespace

int SystemCalls::open(const char* path, int flags, mode_t mode) {
  return ::open(path, flags, mode);
}
ssize_t SystemCalls::write(int fd, const void* data, std::size_t bytes, off_t offset) {
  return ::pwrite(fd, data, bytes, offset);
}
int SystemCalls::resize(int fd, off_t bytes) { return ::ftruncate(fd, bytes); }
int SystemCalls::sync(int fd) { return ::fsync(fd); }
int SystemCalls::close(int fd) { return ::close(fd); }
int SystemCalls::rename(const char* from, const char* to) { return std::rename(from, to); }
int SystemCalls::remove_file(const char* path) { return ::unlink(path); }
int SystemCalls::make_directory(const char* path) { return ::mkdir(path, 0777); }
int SystemCalls::remove_directory(const char* path) { return ::rmdir(path); }

SystemCalls& system_calls() { return *in_use; }

SystemCallsScope::SystemCallsScope(SystemCalls& calls) : previous_(in_use.exchange(&calls)) {}
SystemCallsScope::~SystemCallsScope() { in_use = previous_; }

}  // namespace tessera::io
