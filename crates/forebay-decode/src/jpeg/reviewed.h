/* Which releases of libjpeg-turbo have the private structs and the private behaviour that the C files here rely on.
 * With another one the library decodes by itself, slower. How to review a release: docs/libjpeg-turbo.md. */

#ifndef FOREBAY_REVIEWED_H
#define FOREBAY_REVIEWED_H

#include <stdio.h>

#include <jpeglib.h>

#define IS_REVIEWED (LIBJPEG_TURBO_VERSION_NUMBER >= 3001000 && LIBJPEG_TURBO_VERSION_NUMBER <= 3001003)

#endif
