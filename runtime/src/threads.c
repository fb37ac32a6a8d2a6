#include "threads.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

/* Layers take microseconds, so threads first wait by looking, for less than a tenth of a millisecond, and then sleep.
   Where there are more threads than cores, looking keeps the others from working. */
#define LOOKS 2000
#define FEW_LOOKS 20

typedef struct {
  pool *pool;
  int index;
  pthread_t thread;
} worker;

/* A number that changes, and threads that sleep until it does. */
typedef struct {
  atomic_long value;
  atomic_int sleepers;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
} event;

struct pool {
  int threads, started, looks;
  event begin, end, turn; /* calls that began; threads that are done, of all calls; barriers that were passed */
  atomic_int arrived;      /* at the barrier */
  atomic_bool is_stopping;
  void (*function)(void *, int);
  void *argument;
  worker workers[];
};

static void pause_a_moment(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static void event_init(event *s) {
  pthread_mutex_init(&s->mutex, NULL);
  pthread_cond_init(&s->changed, NULL);
}

static void event_destroy(event *s) {
  pthread_cond_destroy(&s->changed);
  pthread_mutex_destroy(&s->mutex);
}

/* A thread that is about to sleep is counted before it looks for the last time, so none is missed. */
static void event_add(event *s) {
  atomic_fetch_add(&s->value, 1);
  if (!atomic_load(&s->sleepers)) return;
  pthread_mutex_lock(&s->mutex);
  pthread_cond_broadcast(&s->changed);
  pthread_mutex_unlock(&s->mutex);
}

static void event_wait(event *s, long wanted, int looks) {
  for (; looks && atomic_load(&s->value) < wanted; looks--) pause_a_moment();
  if (looks) return;
  pthread_mutex_lock(&s->mutex);
  atomic_fetch_add(&s->sleepers, 1);
  while (atomic_load(&s->value) < wanted) pthread_cond_wait(&s->changed, &s->mutex);
  atomic_fetch_sub(&s->sleepers, 1);
  pthread_mutex_unlock(&s->mutex);
}

static void *work(void *argument) {
  worker *w = argument;
  pool *p = w->pool;
  for (long call = 1;; call++) {
    event_wait(&p->begin, call, p->looks);
    if (atomic_load(&p->is_stopping)) return NULL;
    p->function(p->argument, w->index);
    event_add(&p->end);
  }
}

static long count_cores(void) {
#if defined(_SC_NPROCESSORS_ONLN)
  return sysconf(_SC_NPROCESSORS_ONLN);
#else
  return 1;
#endif
}

pool *pool_start(int threads) {
  pool *p = calloc(1, sizeof *p + (size_t)threads * sizeof(worker));
  if (!p) return NULL;
  p->threads = threads;
  p->looks = threads <= count_cores() ? LOOKS : FEW_LOOKS;
  event_init(&p->begin);
  event_init(&p->end);
  event_init(&p->turn);
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
  atomic_store(&p->is_stopping, true);
  event_add(&p->begin);
  for (int i = 1; i <= p->started; i++) pthread_join(p->workers[i].thread, NULL);
  event_destroy(&p->begin);
  event_destroy(&p->end);
  event_destroy(&p->turn);
  free(p);
}

void pool_run(pool *p, void (*function)(void *, int), void *argument) {
  p->function = function;
  p->argument = argument;
  const long done = atomic_load(&p->end.value) + p->started;
  event_add(&p->begin);
  function(argument, 0);
  event_wait(&p->end, done, p->looks);
}

void pool_barrier(pool *p) {
  const long turn = atomic_load(&p->turn.value);
  if (atomic_fetch_add(&p->arrived, 1) + 1 == p->threads) {
    atomic_store(&p->arrived, 0);
    event_add(&p->turn);
  } else event_wait(&p->turn, turn + 1, p->looks);
}
