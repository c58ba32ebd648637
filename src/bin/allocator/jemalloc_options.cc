// How jemalloc, which the servers are linked to, behaves in them. A call makes and drops some dozens of small objects, many
// calls at a time; glibc's caches of a thread are too short for that (with its single arena, which memory needs, it took
// a third of a busy worker's time).

// Read by jemalloc before main, so it must be a constant of the program itself.
//   narenas                What one thread frees another allocates: with an arena a core, memory would lie about.
//   oversize_threshold     Freed blocks below it are kept for the next of their size; larger ones go back at once.
//   dirty_decay_ms         How long they are kept at most while work goes on; an idle process returns them after
//                          2 s (env/memory_trimmer.h).
extern "C" {
const char* malloc_conf = "narenas:2,oversize_threshold:67108864,dirty_decay_ms:10000,muzzy_decay_ms:0";
}
