// Walks a task list on all threads of the pool.
//
// Few rows (decoding): what lies between two matrix products or attentions is too small to share, so the last thread
// that comes to their barrier does it alone: five barriers a layer. Many rows: each thread does the rows of its share,
// with a barrier only where a task needs rows that another thread made.
#pragma once

#include "backends/cpu/tasks.h"

namespace argent::cpu {

// Most rows for which one thread does row work alone. A row of 4,096 takes some 2 us a layer, a barrier up to 1 us.
inline constexpr uint32_t kRowsAlone = 4;

// Barriers of one pass, the end of the region included.
uint32_t n_barriers(const TaskList& list, uint32_t n_tokens);

void execute(const TaskList& list, const Run& run);

// The same with a barrier behind every task, so that a node's time is its own: the times of the nodes in order, whose
// `busy` lies in [entry of times][thread].
void execute_profiled(const TaskList& list, const Run& run, std::vector<NodeTime>& times, std::vector<uint64_t>& busy);

}  // namespace argent::cpu
