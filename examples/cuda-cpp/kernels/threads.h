#pragma once

// How many threads a block has for rows of that length: each thread has some elements of its own, and none too many.
inline int threads_for(long long columns) { return columns <= 1024 ? 128 : columns <= 4096 ? 256 : 512; }
