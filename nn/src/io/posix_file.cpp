#include "io/posix_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <tessera/nn/io/data_error.hpp>
#include <utility>
#include <vector>

#include "io/system_calls.hpp"

namespace tessera::io {
namespace {

constexpr std::size_t kIdDigits = 16;
constexpr std::string_view kTemporary = ".tmp-";

const char* advice(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return " Check the path.";
    case EACCES:
    case EPERM:
      return " Check its permissions.";
    case EROFS:
      return " Choose a place that can be written.";
    case ENOSPC:
    case EDQUOT:
      return " Make room there, or choose another place.";
    case EFBIG:
      return " Raise the limit of file sizes (ulimit -f).";
    case EMFILE:
      return " Raise the limit of open files (ulimit -n).";
    default:
      return "";
  }
}

[[noreturn]] void fail(const std::string& path, const std::string& problem, int error) {
  throw IoError(str(path, ": ", problem, " (", std::strerror(error), ").", advice(error)));
}

std::string directory_of(const std::string& path) {
  const std::size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

File File::open_with(const std::string& path, int flags, const char* verb) {
  // O_NONBLOCK: opening a pipe that somebody put there must not wait for its other end.
  const int fd = system_calls().open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, 0666);
  if (fd < 0) fail(path, str("cannot be ", verb), errno);
  File file(path, fd);
  struct stat status;
  if (::fstat(fd, &status) != 0) fail(path, "cannot be examined", errno);
  if (!S_ISREG(status.st_mode))
    throw IoError(str(path, ": not a regular file. Give the path of a file."));
  return file;
}

File File::open(const std::string& path) { return open_with(path, O_RDONLY, "opened"); }
File File::create(const std::string& path) {
  return open_with(path, O_RDWR | O_CREAT | O_TRUNC, "created");
}
File File::modify(const std::string& path) { return open_with(path, O_RDWR, "opened for writing"); }

std::optional<File> File::open_below(int directory,
                                     const std::string& names,
                                     const std::string& root) {
  const std::string path = str(root, "/", names);
  int at = directory;
  for (std::size_t begin = 0;;) {
    const std::size_t slash = std::min(names.find('/', begin), names.size());
    const std::string name = names.substr(begin, slash - begin);
    if (name.empty() || name == "." || name == "..")
      throw DataError(str(path, ": not a path below ", root, "."));
    const bool last = slash == names.size();
    const int fd =
        ::openat(at, name.c_str(),
                 O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | (last ? 0 : O_DIRECTORY));
    const int error = errno;
    if (at != directory) ::close(at);
    if (fd < 0) {
      if (error == ENOENT) return std::nullopt;
      if (error == ELOOP || error == ENOTDIR)
        throw DataError(
            str(path, ": not below ", root,
                " (a link, or a file in place of a directory; links are not followed)."));
      fail(path, "cannot be opened", error);
    }
    if (last) {
      File file(path, fd);
      struct stat status;
      if (::fstat(fd, &status) != 0) fail(path, "cannot be examined", errno);
      if (!S_ISREG(status.st_mode)) throw DataError(str(path, ": not a regular file."));
      return file;
    }
    at = fd;
    begin = slash + 1;
  }
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

File::~File() {
  if (fd_ >= 0) system_calls().close(fd_);
}

std::int64_t File::size() const {
  struct stat status;
  if (::fstat(fd_, &status) != 0) fail(path_, "cannot be examined", errno);
  return status.st_size;
}

void File::read(void* data, std::int64_t bytes, std::int64_t offset) const {
  auto* to = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::pread(fd_, to, static_cast<std::size_t>(bytes), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path_, str("cannot be read at byte ", offset), errno);
    if (n == 0)
      throw DataError(str(path_, ": ends at byte ", offset, " (", bytes, " more bytes expected)."));
    to += n;
    bytes -= n;
    offset += n;
  }
}

void File::write(const void* data, std::int64_t bytes, std::int64_t offset) const {
  const auto* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = system_calls().write(fd_, from, static_cast<std::size_t>(bytes), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path_, "cannot be written", errno);
    from += n;
    bytes -= n;
    offset += n;
  }
}

void File::resize(std::int64_t bytes) const {
  if (system_calls().resize(fd_, bytes) != 0)
    fail(path_, str("cannot be resized to ", bytes, " bytes"), errno);
}

void File::sync() const {
  while (system_calls().sync(fd_) != 0)
    if (errno != EINTR) fail(path_, "cannot be brought to disk", errno);
}

std::string temporary_name(const std::string& path, std::int64_t id) {
  char digits[20];
  std::snprintf(digits, sizeof(digits), "%016llx", static_cast<unsigned long long>(id));
  return str(path, kTemporary, digits);
}

void check_replaceable(const std::string& path) {
  struct stat status;
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode))
    throw IoError(str(path, ": not a regular file. Give the path of a file."));
}

bool is_temporary_name(const std::string& name) {
  const std::size_t at = name.rfind(kTemporary);
  return at != std::string::npos && name.size() == at + kTemporary.size() + kIdDigits &&
         name.find_first_not_of("0123456789abcdef", at + kTemporary.size()) == std::string::npos;
}

void remove_stale_temporaries(const std::string& path,
                              void (*remove)(const std::string& temporary) noexcept) noexcept {
  try {
    const std::string start = std::filesystem::path(path).filename().string();
    for (const auto& entry : std::filesystem::directory_iterator(directory_of(path))) {
      const std::string name = entry.path().filename().string();
      if (is_temporary_name(name) && name.substr(0, name.rfind(kTemporary)) == start)
        remove(entry.path().string());
    }
  } catch (const std::exception&) {
    // They only take room.
  }
}

std::int64_t unique_id() {
  static std::atomic<std::uint32_t> calls{0};
  const auto clock = std::chrono::steady_clock::now().time_since_epoch().count();
  const auto pid = static_cast<std::uint64_t>(::getpid());
  return static_cast<std::int64_t>((static_cast<std::uint64_t>(clock) << 24) ^ (pid << 8) ^
                                   calls++);
}

void sync_directory(const std::string& directory) {
  SystemCalls& calls = system_calls();
  const int fd = calls.open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
  if (fd < 0) fail(directory, "cannot be opened", errno);
  const int result = calls.sync(fd);
  const int error = errno;
  calls.close(fd);
  // Some network file systems have no fsync of directories.
  if (result != 0 && error != EINVAL && error != ENOTSUP)
    fail(directory, "cannot be brought to disk", error);
}

void commit_file(const std::string& temporary, const std::string& path) {
  if (system_calls().rename(temporary.c_str(), path.c_str()) != 0)
    fail(path, str("cannot take the place of ", temporary), errno);
  sync_directory(directory_of(path));
}

void make_directory(const std::string& path) {
  if (system_calls().make_directory(path.c_str()) != 0) fail(path, "cannot be made", errno);
}

void make_directories(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return;
  const std::string parent = directory_of(path);
  if (parent != "." && parent != "/") make_directories(parent);
  if (system_calls().make_directory(path.c_str()) != 0 && errno != EEXIST)
    fail(path, "cannot be made", errno);
  sync_directory(parent);
}

void remove_quietly(const std::string& path) noexcept { system_calls().remove_file(path.c_str()); }

void remove_directory_quietly(const std::string& path) noexcept {
  try {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(path))
      files.push_back(entry.path().string());
    for (const std::string& file : files) remove_quietly(file);
  } catch (const std::exception&) {
    // What stays only takes room.
  }
  system_calls().remove_directory(path.c_str());
}

void write_file_atomically(const std::string& path, const std::string& content) {
  const std::string temporary = temporary_name(path, unique_id());
  check_replaceable(path);
  remove_stale_temporaries(path);
  try {
    {
      const File file = File::create(temporary);
      file.write(content.data(), static_cast<std::int64_t>(content.size()), 0);
      file.sync();
    }
    commit_file(temporary, path);
  } catch (...) {
    remove_quietly(temporary);
    throw;
  }
}

std::string read_text_file(const std::string& path) {
  const File file = File::open(path);
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  file.read(text.data(), static_cast<std::int64_t>(text.size()), 0);
  return text;
}

}  // namespace tessera::io
