#include "engine/stops.h"

#include <deque>

namespace argent {

StopMatcher::StopMatcher(const std::vector<std::string>& stops) {
  if (stops.empty()) return;
  nodes_.emplace_back();
  for (size_t i = 0; i < stops.size(); ++i) {
    int at = 0;
    for (char c : stops[i]) {
      int next = child(at, c);
      if (next < 0) {
        next = int(nodes_.size());
        nodes_[size_t(at)].next.push_back({c, next});
        nodes_.emplace_back();
        nodes_.back().depth = nodes_[size_t(at)].depth + 1;
      }
      at = next;
    }
    Node& end = nodes_[size_t(at)];
    if (end.ends < 0) end.ends = int(i), end.ends_depth = end.depth;
  }
  std::deque<int> queue = {0};
  while (!queue.empty()) {
    const int at = queue.front();
    queue.pop_front();
    for (const auto& [c, next] : nodes_[size_t(at)].next) {
      int f = nodes_[size_t(at)].fail;
      while (f && child(f, c) < 0) f = nodes_[size_t(f)].fail;
      const int target = at == 0 ? -1 : child(f, c);
      nodes_[size_t(next)].fail = target < 0 ? 0 : target;
      const Node& suffix = nodes_[size_t(nodes_[size_t(next)].fail)];
      if (nodes_[size_t(next)].ends < 0) {
        nodes_[size_t(next)].ends = suffix.ends;
        nodes_[size_t(next)].ends_depth = suffix.ends_depth;
      }
      queue.push_back(next);
    }
  }
}

int StopMatcher::child(int node, char c) const {
  for (const auto& [byte, next] : nodes_[size_t(node)].next)
    if (byte == c) return next;
  return -1;
}

bool StopMatcher::push(std::string_view text, std::string& out) {
  if (matched_ >= 0) return true;
  if (nodes_.empty()) {
    out += text;
    return false;
  }
  for (char c : text) {
    held_ += c;
    while (at_ && child(at_, c) < 0) at_ = nodes_[size_t(at_)].fail;
    const int next = child(at_, c);
    at_ = next < 0 ? 0 : next;
    const Node& node = nodes_[size_t(at_)];
    if (node.ends >= 0) {
      matched_ = node.ends;
      out.append(held_, 0, held_.size() - size_t(node.ends_depth));
      held_.clear();
      return true;
    }
    if (held_.size() > size_t(node.depth) + 64) {
      out.append(held_, 0, held_.size() - size_t(node.depth));
      held_.erase(0, held_.size() - size_t(node.depth));
    }
  }
  const size_t keep = size_t(nodes_[size_t(at_)].depth);
  out.append(held_, 0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return false;
}

void StopMatcher::finish(std::string& out) {
  if (matched_ < 0) out += held_;
  held_.clear();
}

}  // namespace argent
