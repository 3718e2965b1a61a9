/* For tests that run behind one of our filters. */
#pragma once

/* A sanitizer's runtime makes calls that our filters do not allow. */
#if defined(__SANITIZE_ADDRESS__)
#define SKIP_UNDER_SANITIZER() skip()
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SKIP_UNDER_SANITIZER() skip()
#endif
#endif
#ifndef SKIP_UNDER_SANITIZER
#define SKIP_UNDER_SANITIZER() (void)0
#endif
