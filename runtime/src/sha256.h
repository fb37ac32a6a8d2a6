#ifndef MOON_SHA256_H
#define MOON_SHA256_H

#include <stddef.h>

/* The SHA-256 of some bytes in hexadecimal (FIPS 180-4). */
void sha256(const void *data, size_t size, char hex[65]);

#endif
