/* A fixed set of threads that compute one function together. */

#ifndef MOON_THREADS_H
#define MOON_THREADS_H

typedef struct pool pool;

/* A pool of `threads` threads including the caller's; NULL if they cannot be started. */
pool *pool_start(int threads);
void pool_stop(pool *p);

/* Call `function(argument, thread)` in every thread and wait for all. */
void pool_run(pool *p, void (*function)(void *, int), void *argument);

/* Wait until every thread of the pool is here. */
void pool_barrier(pool *p);

#endif
