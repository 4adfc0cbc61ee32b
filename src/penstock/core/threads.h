/* The threads of a handle for its appends: one populates pages ahead of them, one does a part of long ones. They touch
 * no Python object, and appends work without either. */
#ifndef PENSTOCK_THREADS_H
#define PENSTOCK_THREADS_H

#include "native.h"

static int psk_thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *arg) {
    sigset_t all, before; /* signals belong to the threads that Python knows */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!failed) pthread_setname_np(*thread, name);
    return !failed;
}

/* The calling thread's. */
static inline void psk_thread_name(const char *name) { pthread_setname_np(pthread_self(), name); }

/* Populates pages ahead of the writer, and unmaps those that it has passed. One thread for each handle that appends.
 * It works in small steps to the end of the newest request, so that the writer can see how far the pages are `ready` and
 * can overtake it. The caller waits for `idle` before it unmaps the pages. */

typedef struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    pthread_t thread;
    char *map;        /* the map that all of the following point into */
    char *from;       /* where the newest request began */
    char *next, *end; /* the range still to be populated */
    char *ready;      /* everything from the last request's start to here is populated */
    char *index, *index_end; /* also to be populated, after the first step: appends note blocks in it */
    char *kept, *done; /* this process has pages mapped from `kept` on; up to `done` they are written */
    int busy, stop;
} psk_filler;

static void psk_populate(char *start, size_t bytes) {
    if (madvise(start, bytes, MADV_POPULATE_WRITE) == 0 || errno != EINVAL) return;
    for (size_t i = 0; i < bytes; i += PSK_PAGE) /* kernels before 5.14: a write that changes nothing */
        __atomic_fetch_or((unsigned char *)start + i, 0, __ATOMIC_RELAXED);
}

static void *psk_filler_run(void *arg) {
    psk_filler *f = (psk_filler *)arg;
    pthread_mutex_lock(&f->mutex);
    while (!f->stop) {
        if (f->done > f->kept) {
            char *start = f->kept;
            size_t bytes = (size_t)(f->done - start);
            f->kept = f->done;
            f->busy = 1;
            pthread_mutex_unlock(&f->mutex);
            psk_let_go(start, bytes);
            pthread_mutex_lock(&f->mutex);
            f->busy = 0;
            pthread_cond_broadcast(&f->changed);
            continue;
        }
        char *start = f->next;
        size_t bytes = (size_t)(f->end - start);
        if (f->index < f->index_end && (start >= f->end || start - f->from >= PSK_POPULATE_STEP_BYTES)) {
            start = f->index;
            bytes = (size_t)(f->index_end - start);
            f->index = f->index_end;
        } else if (start < f->end) {
            if (bytes > PSK_POPULATE_STEP_BYTES) bytes = PSK_POPULATE_STEP_BYTES;
            f->next = start + bytes;
        } else {
            pthread_cond_wait(&f->changed, &f->mutex);
            continue;
        }
        f->busy = 1;
        pthread_mutex_unlock(&f->mutex);
        psk_populate(start, bytes);
        pthread_mutex_lock(&f->mutex);
        f->busy = 0;
        if (f->ready == start) __atomic_store_n(&f->ready, start + bytes, __ATOMIC_RELEASE);
        pthread_cond_broadcast(&f->changed);
    }
    pthread_mutex_unlock(&f->mutex);
    return NULL;
}

static psk_filler *psk_filler_start(void) {
    psk_filler *f = (psk_filler *)calloc(1, sizeof *f);
    if (!f) return NULL;
    pthread_mutex_init(&f->mutex, NULL);
    pthread_cond_init(&f->changed, NULL);
    if (!psk_thread_start(&f->thread, "penstock-fill", psk_filler_run, f)) {
        free(f);
        return NULL;
    }
    return f;
}

/* Populate `map` up to `end`, from `start` or from where the thread is, whichever is further; and the same for `index`,
 * which is empty if both its ends are NULL. Requests for another map are dropped: between two maps there is other
 * memory, which must never be unmapped. */
static void psk_filler_ask(psk_filler *f, char *map, char *start, char *end, char *index, char *index_end) {
    pthread_mutex_lock(&f->mutex);
    if (f->map != map) {
        f->map = map;
        f->next = f->end = f->ready = f->kept = f->done = f->index = f->index_end = NULL;
    }
    if (index > f->index) f->index = index;
    if (index_end > f->index_end) f->index_end = index_end;
    if (!f->kept || start < f->kept) f->kept = f->done = start;
    if (start - f->kept > PSK_LET_GO_BYTES) f->done = start - PSK_KEEP_MAPPED_BYTES;
    f->from = start;
    if (start > f->next) {
        f->next = start;
        __atomic_store_n(&f->ready, start, __ATOMIC_RELEASE);
    }
    if (end > f->end) f->end = end;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->mutex);
}

/* Stop where the thread is: a long append is about to write the pages itself. */
static void psk_filler_hold(psk_filler *f) {
    pthread_mutex_lock(&f->mutex);
    f->end = f->next;
    pthread_mutex_unlock(&f->mutex);
}

static inline char *psk_filler_ready(psk_filler *f) { return __atomic_load_n(&f->ready, __ATOMIC_ACQUIRE); }

/* Drop all requests. It takes no time, so that the caller can do it together with other changes that must be atomic;
 * the pages may be unmapped only after `idle`. */
static void psk_filler_forget(psk_filler *f) {
    pthread_mutex_lock(&f->mutex);
    f->map = f->next = f->end = f->ready = f->kept = f->done = f->index = f->index_end = NULL;
    pthread_mutex_unlock(&f->mutex);
}

static void psk_filler_idle(psk_filler *f) {
    pthread_mutex_lock(&f->mutex);
    while (f->busy) pthread_cond_wait(&f->changed, &f->mutex);
    pthread_mutex_unlock(&f->mutex);
}

static void psk_filler_stop(psk_filler *f) {
    pthread_mutex_lock(&f->mutex);
    int first = !f->stop;
    f->stop = 1;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->mutex);
    if (first) pthread_join(f->thread, NULL);
}

/* Only when no thread can call any of the above. */
static void psk_filler_free(psk_filler *f) {
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(&f->mutex);
    free(f);
}

/* Shares the work of a long append with a second thread. It starts when it gets a processor; the caller works
 * meanwhile, and then waits for what the other has begun. One append uses the aide at a time. */

enum { PSK_AIDE_NONE, PSK_AIDE_IDLE, PSK_AIDE_CALLED, PSK_AIDE_BUSY, PSK_AIDE_GONE };

typedef void (*psk_work)(void *job, char *scratch);

typedef struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    pthread_t thread;
    uint32_t state; /* it changes under the mutex */
    int asleep;     /* it waits for `changed`; else it sees the call by polling */
    psk_work work;
    void *job;
    char *scratch;  /* WRITE_SCRATCH_BYTES for the caller, then as many for the thread */
    char *rest;     /* WRITE_BYTES_MIN for both */
} psk_aide;

static psk_aide *psk_aide_new(void) {
    psk_aide *a = (psk_aide *)calloc(1, sizeof *a);
    char *scratch = (char *)malloc(2 * (size_t)PSK_WRITE_SCRATCH_BYTES + PSK_WRITE_BYTES_MIN);
    if (!a || !scratch) {
        free(a);
        free(scratch);
        return NULL;
    }
    pthread_mutex_init(&a->mutex, NULL);
    pthread_cond_init(&a->changed, NULL);
    a->scratch = scratch;
    a->rest = scratch + 2 * (size_t)PSK_WRITE_SCRATCH_BYTES;
    return a;
}

static void psk_spin_while(uint32_t *word, uint32_t value, int64_t ns) {
    int64_t until = psk_monotonic_ns() + ns;
    while (psk_load32(word) == value && psk_monotonic_ns() < until)
        for (int i = 0; i < 16 && psk_load32(word) == value; i++) psk_pause();
}

static void *psk_aide_run(void *arg) {
    psk_aide *a = (psk_aide *)arg;
    struct sched_param none = {0};
    sched_setscheduler(0, SCHED_BATCH, &none); /* it never takes the processor from its caller */
    pthread_mutex_lock(&a->mutex);
    while (a->state != PSK_AIDE_GONE) {
        if (a->state != PSK_AIDE_CALLED) {
            a->asleep = 1;
            pthread_cond_wait(&a->changed, &a->mutex);
            a->asleep = 0;
            continue;
        }
        psk_store32(&a->state, PSK_AIDE_BUSY);
        pthread_mutex_unlock(&a->mutex);
        a->work(a->job, a->scratch + PSK_WRITE_SCRATCH_BYTES);
        pthread_mutex_lock(&a->mutex);
        if (a->state == PSK_AIDE_BUSY) psk_store32(&a->state, PSK_AIDE_IDLE);
        pthread_cond_broadcast(&a->changed);
        pthread_mutex_unlock(&a->mutex);
        /* Long appends often come one after the other, and waking a thread takes a good part of the time of one. */
        psk_spin_while(&a->state, PSK_AIDE_IDLE, PSK_AIDE_SPIN_NS);
        pthread_mutex_lock(&a->mutex);
    }
    pthread_mutex_unlock(&a->mutex);
    return NULL;
}

/* Under the mutex. A second thread is useless on a single processor. */
static void psk_aide_hire(psk_aide *a) {
    cpu_set_t cpus;
    int alone = sched_getaffinity(0, sizeof cpus, &cpus) == 0 && CPU_COUNT(&cpus) < 2;
    int hired = !alone && psk_thread_start(&a->thread, "penstock-aide", psk_aide_run, a);
    a->state = hired ? PSK_AIDE_IDLE : PSK_AIDE_GONE;
}

/* Do `work`. Each of both threads calls it once, with separate buffers, and it runs until all work is taken. */
static void psk_aide_share(psk_aide *a, psk_work work, void *job) {
    pthread_mutex_lock(&a->mutex);
    if (a->state == PSK_AIDE_NONE) psk_aide_hire(a);
    if (a->state == PSK_AIDE_IDLE) {
        a->work = work;
        a->job = job;
        psk_store32(&a->state, PSK_AIDE_CALLED);
        if (a->asleep) pthread_cond_broadcast(&a->changed);
    }
    pthread_mutex_unlock(&a->mutex);
    work(job, a->scratch);
    psk_spin_while(&a->state, PSK_AIDE_BUSY, PSK_WRITE_SPIN_NS);
    pthread_mutex_lock(&a->mutex);
    if (a->state == PSK_AIDE_CALLED) a->state = PSK_AIDE_IDLE; /* it never came */
    while (a->state == PSK_AIDE_BUSY) pthread_cond_wait(&a->changed, &a->mutex);
    pthread_mutex_unlock(&a->mutex);
}

static void psk_aide_stop(psk_aide *a) {
    pthread_mutex_lock(&a->mutex);
    while (a->state == PSK_AIDE_BUSY) pthread_cond_wait(&a->changed, &a->mutex);
    int runs = a->state == PSK_AIDE_IDLE || a->state == PSK_AIDE_CALLED;
    psk_store32(&a->state, PSK_AIDE_GONE);
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->mutex);
    if (runs) pthread_join(a->thread, NULL);
}

/* Only when no thread can call any of the above. */
static void psk_aide_free(psk_aide *a) {
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->mutex);
    free(a->scratch);
    free(a);
}

#endif
