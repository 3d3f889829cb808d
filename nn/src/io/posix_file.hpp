#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace tessera::io {

/// A file descriptor; every failure is an IoError that names the file and the reason.
class File {
 public:
  /// Opens a regular file for reading.
  static File open(const std::string& path);
  /// Creates or empties a file for reading and writing.
  static File create(const std::string& path);
  /// Opens a regular file below a directory for reading: `names` like "c/0/1", of which none may be
  /// "..", and none is followed that is a link. Nothing when there is none. `root` is for messages.
  static std::optional<File> open_below(int directory,
                                        const std::string& names,
                                        const std::string& root);
  /// Opens an existing file for writing.
  static File modify(const std::string& path);
  File(File&& other) noexcept;
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  File& operator=(File&&) = delete;
  ~File();

  const std::string& path() const { return path_; }
  std::int64_t size() const;
  /// Exactly `bytes` bytes; a file that ends before is an error.
  void read(void* data, std::int64_t bytes, std::int64_t offset) const;
  void write(const void* data, std::int64_t bytes, std::int64_t offset) const;
  void resize(std::int64_t bytes) const;
  void sync() const;

 private:
  File(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  static File open_with(const std::string& path, int flags, const char* verb);
  std::string path_;
  int fd_ = -1;
};

/// `path` + ".tmp-" + id: beside the final file, so that a rename is atomic.
std::string temporary_name(const std::string& path, std::int64_t id);
/// Whether `name` ends as temporary_name() says.
bool is_temporary_name(const std::string& name);
/// Throws IoError when there is something at `path` other than a regular file, which a rename would
/// replace: a directory, a device, a pipe.
void check_replaceable(const std::string& path);
void remove_quietly(const std::string& path) noexcept;
/// Removes the temporary files (or, by `remove`, directories) that a run left behind which was
/// killed while it wrote `path`.
void remove_stale_temporaries(
    const std::string& path,
    void (*remove)(const std::string& temporary) noexcept = remove_quietly) noexcept;
/// A number that differs between processes, and between calls of one process.
std::int64_t unique_id();
/// Makes the entries of a directory durable.
void sync_directory(const std::string& directory);
/// Puts a finished temporary file, or directory, in its place and makes the directory entry
/// durable.
void commit_file(const std::string& temporary, const std::string& path);
/// Throws IoError, also when it exists.
void make_directory(const std::string& path);
/// The directory and those above it that are missing, durably.
void make_directories(const std::string& path);
/// A directory and the files in it.
void remove_directory_quietly(const std::string& path) noexcept;
/// Writes a whole small file such that either the old or the new content is there, whatever
/// happens.
void write_file_atomically(const std::string& path, const std::string& content);
/// The whole content of a small text file.
std::string read_text_file(const std::string& path);

}  // namespace tessera::io
