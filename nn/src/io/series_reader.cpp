#include "io/series_reader.hpp"

#include <algorithm>
#include <list>
#include <mutex>

#include "io/decoding.hpp"
#include "io/lower.hpp"
#include "io/stored_type.hpp"

namespace tessera::io {
namespace {

constexpr std::size_t kOpenFiles = 32;

bool same_decoding(const Decoding* a, const Decoding* b) {
  if (!a || !b) return a == b;
  return a->missing == b->missing && a->raw_min == b->raw_min && a->raw_max == b->raw_max &&
         a->min == b->min && a->max == b->max && a->scale == b->scale && a->offset == b->offset &&
         a->wrap == b->wrap;
}

std::size_t index_in(const FieldReader& reader, const std::string& name) {
  return static_cast<std::size_t>(&reader.variable(name) - reader.variables().data());
}

}  // namespace

struct SeriesReader::State {
  struct Series {
    std::string name;
    int along = -1;
    bool decoded = false;  // by the file's own reader, to double
  };

  std::vector<std::string> paths;
  std::vector<std::int64_t> bounds = {0};  // along the dimension
  std::vector<Series> series;
  std::mutex mutex;
  std::list<std::pair<std::size_t, std::shared_ptr<FieldReader>>> open;  // last used first
  std::int64_t closed_bytes = 0;

  std::shared_ptr<FieldReader> reader(std::size_t file) {
    const std::lock_guard lock(mutex);
    const auto found =
        std::find_if(open.begin(), open.end(), [&](const auto& o) { return o.first == file; });
    if (found != open.end()) {
      open.splice(open.begin(), open, found);
    } else {
      open.emplace_front(file, std::shared_ptr<FieldReader>(open_fields(paths[file])));
      if (open.size() > kOpenFiles) {
        closed_bytes += open.back().second->bytes_read();
        open.pop_back();
      }
    }
    return open.front().second;
  }
};

SeriesReader::~SeriesReader() = default;

SeriesReader::SeriesReader(const std::vector<std::string>& paths, const std::string& along)
    : FieldReader(paths.empty() ? "" : str(paths.front(), " and ", paths.size() - 1, " more")),
      state_(std::make_unique<State>()) {
  if (paths.empty()) throw UsageError("read: a series of no files. Name at least one.");
  state_->paths = paths;
  const auto first = state_->reader(0);
  struct Entry {
    FieldVariable variable;
    Storage storage;
    int along;
    bool decoded = false;
    bool left_out = false;
  };
  std::vector<Entry> entries;
  for (std::size_t i = 0; i < first->variables().size(); ++i) {
    const FieldVariable& v = first->variables()[i];
    entries.push_back({v, storage_of(*first, i), v.numeric ? find_dimension(v.dims, along) : -1});
  }
  for (std::size_t file = 0; file < paths.size(); ++file) {
    const auto reader = state_->reader(file);
    std::int64_t length = -1;
    for (Entry& e : entries) {
      if (e.along < 0) continue;
      const std::size_t index = index_in(*reader, e.variable.name);
      const FieldVariable& v = reader->variables()[index];
      Shape expected = e.variable.shape;
      if (v.numeric && v.shape.size() == expected.size()) expected[e.along] = v.shape[e.along];
      if (!v.numeric || v.dims != e.variable.dims || v.shape != expected)
        throw DataError(str("read: variable \"", v.name, "\" has shape ", v.shape, " in ",
                            paths[file], " and ", e.variable.shape, " in ", paths.front(),
                            ". Files of a series may differ along \"", along, "\" alone."));
      if (length >= 0 && length != v.shape[e.along])
        throw DataError(str("read: variables of ", paths[file], " have ", length, " and ",
                            v.shape[e.along], " points along \"", along, "\"."));
      length = v.shape[e.along];
      const Storage& storage = storage_of(*reader, index);
      if (storage.type != e.storage.type ||
          !same_decoding(storage.decoding.get(), e.storage.decoding.get()))
        e.decoded = true;
      const auto unit = [](const FieldVariable& of) {
        const auto found = of.attributes.find("units");
        return found == of.attributes.end() ? Attribute() : found->second;
      };
      if (unit(v) == unit(e.variable)) continue;
      // Days since another day are common; the fields do not depend on them.
      if (v.shape.size() > 1)
        throw DataError(str("read: \"", v.name, "\" of ", paths[file],
                            " has other units than that of ", paths.front(), "."));
      e.left_out = true;
    }
    if (length < 0)
      throw DataError(str("read: ", paths.front(), " has no variable with a dimension \"", along,
                          "\". Name the dimension along which the files follow each other."));
    state_->bounds.push_back(state_->bounds.back() + length);
  }
  for (Entry& e : entries) {
    if (e.left_out) continue;
    state_->series.push_back({e.variable.name, e.along, e.decoded});
    if (e.along >= 0) e.variable.shape[e.along] = state_->bounds.back();
    if (e.decoded) {
      e.storage.type = StoredType::kFloat64;
      e.storage.decoding = nullptr;
    }
    add(std::move(e.variable), std::move(e.storage));
  }
  set_attributes(first->attributes());
}

std::int64_t SeriesReader::bytes_read() const {
  const std::lock_guard lock(state_->mutex);
  std::int64_t total = state_->closed_bytes;
  for (const auto& [file, reader] : state_->open) total += reader->bytes_read();
  return total;
}

void SeriesReader::read_raw(std::size_t variable, const Box& box, void* values) const {
  const State::Series& s = state_->series[variable];
  const StoredType type = variables()[variable].type;
  if (s.along < 0) {
    const auto reader = state_->reader(0);
    return read_raw_of(*reader, index_in(*reader, s.name), box, values);
  }
  // Of each file's part, what lies before `along` are runs in the result.
  const std::int64_t element = size_of(type);
  std::int64_t runs = 1;
  std::int64_t inner = element;
  for (int d = 0; d < s.along; ++d) runs *= box[d].size();
  for (int d = s.along + 1; d < box.dims(); ++d) inner *= box[d].size();
  const std::int64_t row = box[s.along].size() * inner;
  std::vector<std::byte> part;
  for (std::size_t file = 0; file + 1 < state_->bounds.size(); ++file) {
    const std::int64_t start = state_->bounds[file];
    const Interval here = intersect(box[s.along], {start, state_->bounds[file + 1]});
    if (here.empty()) continue;
    Box own = box;
    own.set(s.along, {here.lo - start, here.hi - start});
    part.resize(static_cast<std::size_t>(runs * here.size() * inner));
    const auto reader = state_->reader(file);
    if (s.decoded) {
      reader->read(s.name, own, View::dense(part.data(), DType::kFloat64, own.shape()));
    } else {
      read_raw_of(*reader, index_in(*reader, s.name), own, part.data());
    }
    auto* const to = static_cast<std::byte*>(values) + (here.lo - box.lo[s.along]) * inner;
    for (std::int64_t r = 0; r < runs; ++r)
      std::copy_n(part.data() + r * here.size() * inner, here.size() * inner, to + r * row);
  }
}

}  // namespace tessera::io
