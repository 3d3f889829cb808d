#pragma once

// Decomposed tensors of every kind of layout, written by the processes of a job into one directory.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <tessera/core/tensor.hpp>
#include <tessera/nn/checkpoint.hpp>

#include "io/system_calls.hpp"
#include "io_support.hpp"
#include "support/dense.hpp"

namespace tessera::test {

/// A directory that all processes see; gone with the last of these objects.
class SharedDir {
 public:
  SharedDir() : ranks_(nn::collective(Mesh::world({{"all", process().count}}))) {
    static int number = 0;
    const auto id = ranks_.broadcast(ranks_.rank == 0 ? static_cast<std::int64_t>(::getpid()) : 0);
    path_ = (std::filesystem::temp_directory_path() /
             ("tessera-write-" + std::to_string(id) + "-" + std::to_string(number++)))
                .string();
    if (ranks_.rank == 0) std::filesystem::create_directories(path_);
    ranks_.barrier();
  }
  ~SharedDir() {
    ranks_.barrier();
    if (ranks_.rank == 0) std::filesystem::remove_all(path_);
  }
  SharedDir(const SharedDir&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  /// Names in it; all processes see the same.
  std::vector<std::string> list() const {
    ranks_.barrier();
    std::vector<std::string> names;
    for (const auto& e : std::filesystem::directory_iterator(path_))
      names.push_back(e.path().filename().string());
    std::sort(names.begin(), names.end());
    ranks_.barrier();
    return names;
  }
  const io::Collective& ranks() const { return ranks_; }

 private:
  io::Collective ranks_;
  std::string path_;
};

inline std::vector<Mesh> write_meshes() {
  std::vector<Mesh> meshes = {Mesh::world({{"all", process().count}})};
  if (process().count % 2 == 0)
    meshes.push_back(Mesh::world({{"a", 2}, {"b", process().count / 2}}));
  return meshes;
}

/// Each axis splits some of the dimensions `dims` or none; parts are uneven and often empty.
inline Layout random_layout(const Mesh& mesh,
                            const Shape& shape,
                            const std::vector<int>& dims,
                            Rng& rng) {
  std::vector<DimSplit> splits(static_cast<std::size_t>(shape.size()));
  for (int axis = 0; axis < mesh.axis_count(); ++axis) {
    const std::int64_t d = rng.integer(-1, std::ssize(dims) - 1);
    if (d >= 0)
      splits[static_cast<std::size_t>(dims[static_cast<std::size_t>(d)])].axes.push_back(axis);
  }
  for (int d = 0; d < shape.size(); ++d) {
    DimSplit& split = splits[static_cast<std::size_t>(d)];
    int parts = 1;
    for (const int axis : split.axes) parts *= mesh.axis_size(axis);
    if (split.axes.empty()) continue;
    split.bounds = {0, shape[d]};
    for (int p = 1; p < parts; ++p) split.bounds.push_back(rng.integer(0, shape[d]));
    std::sort(split.bounds.begin(), split.bounds.end());
  }
  return Layout::make(mesh, shape, splits);
}

/// The number of an element in row-major order.
inline std::int64_t number_of(const Shape& shape, const Index& i) {
  std::int64_t n = 0;
  for (int d = 0; d < shape.size(); ++d) n = n * shape[d] + i[d];
  return n;
}

/// What stands for the number `n` in an element type: all of them where it holds all.
inline double expected_number(DType dtype, std::int64_t n) {
  if (dtype == DType::kBool) return static_cast<double>(n % 2);
  return static_cast<double>(dtype == DType::kUInt8 || dtype == DType::kBFloat16 ? n % 251 : n);
}

/// A tensor whose elements are their numbers plus `start`.
inline Tensor numbered(const Layout& layout, DType dtype, std::int64_t start = 0) {
  return Tensor::from_function(
      layout,
      [&](const Index& i) { return expected_number(dtype, number_of(layout.shape(), i) + start); },
      dtype);
}

/// A disk that fails on one process after some bytes, or takes few bytes at a time.
class BadDisk : public io::SystemCalls {
 public:
  std::int64_t room = -1;  ///< bytes until writes fail; below 0: never
  int error = ENOSPC;
  bool short_writes = false;
  bool read_only = false;
  std::string no_rename = {};  ///< files with this in their new name

  int open(const char* path, int flags, mode_t mode) override {
    if (read_only && (flags & (O_CREAT | O_WRONLY | O_RDWR)) != 0) return fail(EROFS);
    return SystemCalls::open(path, flags, mode);
  }
  int make_directory(const char* path) override {
    return read_only ? fail(EROFS) : SystemCalls::make_directory(path);
  }
  ssize_t write(int fd, const void* data, std::size_t bytes, off_t offset) override {
    if (short_writes) bytes = std::min<std::size_t>(bytes, 7);
    if (room >= 0) {
      if (room == 0) return fail(error);
      bytes = std::min(bytes, static_cast<std::size_t>(room));
      room -= static_cast<std::int64_t>(bytes);
    }
    return SystemCalls::write(fd, data, bytes, offset);
  }
  int rename(const char* from, const char* to) override {
    if (!no_rename.empty() && std::string(to).find(no_rename) != std::string::npos)
      return fail(EIO);
    return SystemCalls::rename(from, to);
  }

 private:
  static int fail(int error) {
    errno = error;
    return -1;
  }
};

/// The message of the IoError that `f` throws; all processes must throw the same.
inline std::string io_error_of(const SharedDir& dir, const std::function<void()>& f) {
  std::string message;
  try {
    f();
  } catch (const IoError& e) {
    message = e.what();
  }
  const auto hash = static_cast<std::int64_t>(std::hash<std::string>{}(message) >> 8);
  const std::int64_t first = dir.ranks().broadcast(hash);
  const std::int64_t differ = dir.ranks().total(first == hash ? 0 : 1);
  return differ == 0 ? message : "processes differ: " + message;
}

}  // namespace tessera::test
