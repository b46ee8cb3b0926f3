// The tokens that a rank has of samples, among those of whole samples.
#pragma once
#include "common.cuh"

struct Places {
    u32 length; // tokens of a sample here
    u32 part;   // of these, those that follow each other from the first on, as the others do
    u32 first_shift;  // added to the number of such a token to get its position
    u32 second_shift; // and of the others
    u32 whole;  // tokens of a whole sample
};

inline u32 position_of(const Places& places, u64 token) {
    u32 at = (u32)(token % places.length);
    return at + (at < places.part ? places.first_shift : places.second_shift);
}

// The number of a token among those of all whole samples.
inline u64 number_of(const Places& places, u64 token) {
    return token / places.length * places.whole + position_of(places, token);
}

// Whether a token is no padding. `real` has the number of such tokens of each whole sample; null if all are.
inline bool is_real(const int* real, const Places& places, u64 token) {
    return !real || (int)position_of(places, token) < real[token / places.length];
}
