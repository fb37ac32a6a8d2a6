/* What a file says about answers: classes, preprocessing, detector and thresholds. */

#ifndef MOON_CLASSIFIER_H
#define MOON_CLASSIFIER_H

#include "model.h"
#include "program.h"

struct classifier {
  const char **names;
  int classes;
  bool can_answer;          /* the file has a detector and thresholds; if not, only the names are set */
  const float *scale, *shift; /* of each channel: what the network gets is pixel * scale + shift */
  double temperature;
  int logits, features;     /* outputs of the network; -1: there are none */
  const program *program;
  const double *threshold;  /* one, or one for each class */
  const double *calibration;
  const int64_t *group;     /* where the calibration scores of each class begin, and the end; NULL: of all classes */
  int64_t calibration_size;
  /* Memory of moon_predict, allocated when it is first needed. */
  float *images, **outputs; /* of the network; in the order of its outputs, NULL if not needed */
  int64_t room;             /* images that fit */
  double **work;            /* one for each thread */
  int threads;
};

/* classifier.c */
void read_classifier(moon_model *model, const json *description);
void free_classifier(classifier *c);

#endif
