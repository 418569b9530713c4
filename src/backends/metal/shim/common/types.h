// Names of MSL's vector, matrix and packed types; included inside a namespace. MTL_HALF and MTL_BFLOAT are the
// flavour's types.
#define MTL_VECTORS(name, type)          \
  using name##2 = ::metal::vec<type, 2>; \
  using name##3 = ::metal::vec<type, 3>; \
  using name##4 = ::metal::vec<type, 4>;
MTL_VECTORS(float, float)
MTL_VECTORS(half, MTL_HALF)
MTL_VECTORS(bfloat, MTL_BFLOAT)
MTL_VECTORS(int, int)
MTL_VECTORS(uint, unsigned int)
MTL_VECTORS(short, short)
MTL_VECTORS(ushort, unsigned short)
MTL_VECTORS(char, signed char)
MTL_VECTORS(uchar, unsigned char)
MTL_VECTORS(long, long)
MTL_VECTORS(ulong, unsigned long)
MTL_VECTORS(bool, bool)
#undef MTL_VECTORS

#define MTL_MATRICES(name, type)                 \
  using name##2x2 = ::metal::matrix<type, 2, 2>; \
  using name##2x4 = ::metal::matrix<type, 2, 4>; \
  using name##3x3 = ::metal::matrix<type, 3, 3>; \
  using name##4x4 = ::metal::matrix<type, 4, 4>;
MTL_MATRICES(float, float)
MTL_MATRICES(half, MTL_HALF)
MTL_MATRICES(bfloat, MTL_BFLOAT)
#undef MTL_MATRICES

#define MTL_PACKED(name, type)                           \
  using packed_##name##2 = ::metal::packed_vec<type, 2>; \
  using packed_##name##3 = ::metal::packed_vec<type, 3>; \
  using packed_##name##4 = ::metal::packed_vec<type, 4>;
MTL_PACKED(float, float)
MTL_PACKED(half, MTL_HALF)
MTL_PACKED(uint, unsigned int)
MTL_PACKED(ushort, unsigned short)
MTL_PACKED(char, signed char)
MTL_PACKED(uchar, unsigned char)
#undef MTL_PACKED
