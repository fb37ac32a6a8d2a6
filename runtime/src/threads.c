#include "threads.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

/* Layers take microseconds, so threads first wait by looking; then they let others have the core. */
#define LOOKS 4000

typedef struct {
  pool *pool;
  int index;
  pthread_t thread;
} worker;

struct pool {
  int threads, started, remaining;
  long generation; /* of the work that the condition variables announce */
  int stopping;
  void (*function)(void *, int);
  void *argument;
  pthread_mutex_t mutex;
  pthread_cond_t begin, end;
  atomic_int arrived, turn;
  worker workers[];
};

static void pause_a_moment(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static void *work(void *argument) {
  worker *w = argument;
  pool *p = w->pool;
  long seen = 0;
  for (;;) {
    pthread_mutex_lock(&p->mutex);
    while (p->generation == seen && !p->stopping) pthread_cond_wait(&p->begin, &p->mutex);
    seen = p->generation;
    const int stopping = p->stopping;
    pthread_mutex_unlock(&p->mutex);
    if (stopping) return NULL;
    p->function(p->argument, w->index);
    pthread_mutex_lock(&p->mutex);
    if (!--p->remaining) pthread_cond_signal(&p->end);
    pthread_mutex_unlock(&p->mutex);
  }
}

pool *pool_start(int threads) {
  pool *p = calloc(1, sizeof *p + (size_t)threads * sizeof(worker));
  if (!p) return NULL;
  p->threads = threads;
  pthread_mutex_init(&p->mutex, NULL);
  pthread_cond_init(&p->begin, NULL);
  pthread_cond_init(&p->end, NULL);
  for (int i = 1; i < threads; i++, p->started++) {
    p->workers[i] = (worker){.pool = p, .index = i};
    if (pthread_create(&p->workers[i].thread, NULL, work, &p->workers[i])) {
      pool_stop(p);
      return NULL;
    }
  }
  return p;
}

void pool_stop(pool *p) {
  if (!p) return;
  pthread_mutex_lock(&p->mutex);
  p->stopping = 1;
  pthread_cond_broadcast(&p->begin);
  pthread_mutex_unlock(&p->mutex);
  for (int i = 1; i <= p->started; i++) pthread_join(p->workers[i].thread, NULL);
  pthread_cond_destroy(&p->begin);
  pthread_cond_destroy(&p->end);
  pthread_mutex_destroy(&p->mutex);
  free(p);
}

void pool_run(pool *p, void (*function)(void *, int), void *argument) {
  pthread_mutex_lock(&p->mutex);
  p->function = function;
  p->argument = argument;
  p->remaining = p->started;
  p->generation++;
  pthread_cond_broadcast(&p->begin);
  pthread_mutex_unlock(&p->mutex);
  function(argument, 0);
  pthread_mutex_lock(&p->mutex);
  while (p->remaining) pthread_cond_wait(&p->end, &p->mutex);
  pthread_mutex_unlock(&p->mutex);
}

void pool_barrier(pool *p) {
  const int turn = atomic_load(&p->turn);
  if (atomic_fetch_add(&p->arrived, 1) + 1 == p->threads) {
    atomic_store(&p->arrived, 0);
    atomic_fetch_add(&p->turn, 1);
    return;
  }
  for (int looks = 0; atomic_load(&p->turn) == turn; looks++)
    if (looks < LOOKS) pause_a_moment();
    else sched_yield();
}
