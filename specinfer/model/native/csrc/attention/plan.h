// Divides the attention of a pass into groups of rows that read the same keys, and segments of their context.
//
// A context is divided into segments of SEGMENT positions, whose results are merged in order. Groups and units only decide
// which thread computes what; they do not change results.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "bindings.h"
#include "simd/threads.h"

namespace specinfer {

inline constexpr int SEGMENT = 512;     // positions; as many products fit in a sum of `ByteValues`
inline constexpr int GROUP_ROWS = 48;   // maximum (token, head) rows that read a segment in turn, while it is cached
inline constexpr int UNITS_PER_THREAD = 4;

struct AttentionGroup {
  int sequence, head, first, rows;  // KV head; first row and number of rows, among the sequence's (token, head) rows
  int segments;
  int unit;         // first unit: a group has one per segment, or one for all segments
  size_t partials;  // start of its partial results, if each segment has a unit
};

class AttentionPlan {
 public:
  std::vector<AttentionGroup> groups;
  std::vector<float> partials;  // [groups][segments][rows][width]
  int units = 0;
  bool by_segments = false;  // True if each segment of a group is a unit

  // Plans a pass. Only one thread may call it.
  void make(const Shape& s, const Pass& p) {
    const int group = s.heads / s.kv_heads;
    int64_t work = 0;
    for (int i = 0; i < p.sequences; ++i) work += int64_t(rows_of(p, i)) * s.heads * segments_of(p, i);
    const int rows = std::clamp<int64_t>(work / (UNITS_PER_THREAD * p.threads), 1, GROUP_ROWS);
    groups.clear();
    size_t width = s.dim + 2, place = 0;
    for (int i = 0; i < p.sequences; ++i) {
      const int all = rows_of(p, i) * group, parts = (all + rows - 1) / rows;
      for (int head = 0; head < s.kv_heads; ++head)
        for (int part = 0; part < parts; ++part) {
          const Range r = share(all, part, parts);
          groups.push_back({i, head, r.begin, r.end - r.begin, segments_of(p, i), 0, 0});
        }
    }
    by_segments = int(groups.size()) < UNITS_PER_THREAD * p.threads;
    units = 0;
    for (AttentionGroup& g : groups) {
      g.unit = units, g.partials = place;
      units += by_segments ? g.segments : 1;
      if (by_segments && g.segments > 1) place += size_t(g.segments) * g.rows * width;
    }
    if (partials.size() < place) partials.resize(place);
    if (counted_ < groups.size()) {
      counted_ = groups.size();
      done_ = std::make_unique<std::atomic<int>[]>(counted_);
    }
  }

  int group_of(int unit) const {
    const auto after = std::upper_bound(groups.begin(), groups.end(), unit, [](int u, const auto& g) { return u < g.unit; });
    return int(after - groups.begin()) - 1;
  }

  // Counts a segment; if it was the group's last, resets the count and returns true.
  bool finish_segment(int group) {
    if (done_[group].fetch_add(1, std::memory_order_acq_rel) + 1 < groups[group].segments) return false;
    done_[group].store(0, std::memory_order_relaxed);
    return true;
  }

 private:
  static int rows_of(const Pass& p, int sequence) { return p.row_start[sequence + 1] - p.row_start[sequence]; }
  static int segments_of(const Pass& p, int sequence) {
    int positions = 1;
    for (int t = p.row_start[sequence]; t < p.row_start[sequence + 1]; ++t)
      positions = std::max(positions, p.visible[t] + p.extra_start[t + 1] - p.extra_start[t]);
    return (positions + SEGMENT - 1) / SEGMENT;
  }

  std::unique_ptr<std::atomic<int>[]> done_;
  size_t counted_ = 0;
};

}  // namespace specinfer
