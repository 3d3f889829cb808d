#pragma once

#include <sys/types.h>

#include <cstddef>

namespace tessera::io {

/// The calls by which anything here changes a file system; each returns -1 and sets errno when it
/// fails. Tests put their own in place of these (SystemCallsScope): calls that fail, or that are
/// the last of a process that dies.
class SystemCalls {
 public:
  virtual ~SystemCalls() = default;
  virtual int open(const char* path, int flags, mode_t mode);
  virtual ssize_t write(int fd, const void* data, std::size_t bytes, off_t offset);
  virtual int resize(int fd, off_t bytes);
  /// Of a file, or of a directory's entries.
  virtual int sync(int fd);
  virtual int close(int fd);
  virtual int rename(const char* from, const char* to);
  virtual int remove_file(const char* path);
  virtual int make_directory(const char* path);
  virtual int remove_directory(const char* path);
};

/// Those in use.
SystemCalls& system_calls();

/// While alive, all threads of this process use `calls`.
class SystemCallsScope {
 public:
  explicit SystemCallsScope(SystemCalls& calls);
  ~SystemCallsScope();
  SystemCallsScope(const SystemCallsScope&) = delete;

 private:
  SystemCalls* previous_;
};

}  // namespace tessera::io
