// Everything that the host layer uses of Apple's Foundation and Metal: classes, selectors with the types of their
// arguments, and values, by the names of Apple's documentation. tests/metal_apple/api_test.py compares the lines with
// two other bindings of Metal where those are installed.
#pragma once

#include <cstdint>

#include "backends/metal/apple/objc.h"

namespace argent::metal::apple {

using NSUInteger = unsigned long;
using NSInteger = long;

struct MTLSize {
  NSUInteger width, height, depth;
};

enum NSStringEncoding : NSUInteger { NSUTF8StringEncoding = 4 };
enum MTLResourceOptions : NSUInteger {
  MTLResourceStorageModeShared = 0,
  MTLResourceHazardTrackingModeUntracked = 0x100
};
enum MTLDispatchType : NSUInteger { MTLDispatchTypeSerial = 0, MTLDispatchTypeConcurrent = 1 };
enum MTLBarrierScope : NSUInteger { MTLBarrierScopeBuffers = 1 };
enum MTLDataType : NSUInteger { MTLDataTypeFloat = 3, MTLDataTypeInt = 29, MTLDataTypeUInt = 33, MTLDataTypeBool = 53 };
enum MTLGPUFamily : NSInteger { MTLGPUFamilyApple7 = 1007 };  // M1 and later: SIMD-group reductions and matrices
enum MTLLanguageVersion : NSUInteger { MTLLanguageVersion3_1 = 0x30001 };  // bfloat; macOS 14
enum MTLPipelineOption : NSUInteger { MTLPipelineOptionNone = 0, MTLPipelineOptionFailOnBinaryArchiveMiss = 4 };
enum MTLCommandBufferStatus : NSUInteger {
  MTLCommandBufferStatusNotEnqueued = 0,
  MTLCommandBufferStatusEnqueued = 1,
  MTLCommandBufferStatusCommitted = 2,
  MTLCommandBufferStatusScheduled = 3,
  MTLCommandBufferStatusCompleted = 4,
  MTLCommandBufferStatusError = 5
};
enum MTLCommandBufferError : NSInteger {
  MTLCommandBufferErrorInternal = 1,
  MTLCommandBufferErrorTimeout = 2,
  MTLCommandBufferErrorPageFault = 3,
  MTLCommandBufferErrorAccessRevoked = 4,
  MTLCommandBufferErrorNotPermitted = 7,
  MTLCommandBufferErrorOutOfMemory = 8,
  MTLCommandBufferErrorInvalidResource = 9,
  MTLCommandBufferErrorMemoryless = 10,
  MTLCommandBufferErrorDeviceRemoved = 11,
  MTLCommandBufferErrorStackOverflow = 12
};

struct NSObject {
  ARGENT_METHOD(NSObject*, retain, "retain")
  ARGENT_METHOD(void, release, "release")
  ARGENT_METHOD(bool, respondsToSelector, "respondsToSelector:", SEL)
};

// ---- Foundation

struct NSString : NSObject {
  ARGENT_CLASS(NSString)
  ARGENT_CLASS_METHOD(NSString*, stringWithCString, "stringWithCString:encoding:", const char*, NSStringEncoding)
  ARGENT_METHOD(const char*, UTF8String, "UTF8String")
};

struct NSError : NSObject {
  ARGENT_METHOD(NSInteger, code, "code")
  ARGENT_METHOD(NSString*, localizedDescription, "localizedDescription")
};

struct NSURL : NSObject {
  ARGENT_CLASS(NSURL)
  ARGENT_CLASS_METHOD(NSURL*, fileURLWithPath, "fileURLWithPath:", NSString*)
};

struct NSArray : NSObject {
  ARGENT_CLASS(NSArray)
  ARGENT_CLASS_METHOD(NSArray*, arrayWithObject, "arrayWithObject:", NSObject*)
};

struct NSProcessInfo : NSObject {
  ARGENT_CLASS(NSProcessInfo)
  ARGENT_CLASS_METHOD(NSProcessInfo*, processInfo, "processInfo")
  ARGENT_METHOD(NSString*, operatingSystemVersionString, "operatingSystemVersionString")
};

// ---- libraries and pipelines

struct MTLCompileOptions : NSObject {
  ARGENT_CLASS(MTLCompileOptions)
  ARGENT_CLASS_METHOD(MTLCompileOptions*, alloc, "alloc")
  ARGENT_METHOD(MTLCompileOptions*, init, "init")
  ARGENT_METHOD(void, setLanguageVersion, "setLanguageVersion:", MTLLanguageVersion)
};

struct MTLFunctionConstantValues : NSObject {
  ARGENT_CLASS(MTLFunctionConstantValues)
  ARGENT_CLASS_METHOD(MTLFunctionConstantValues*, alloc, "alloc")
  ARGENT_METHOD(MTLFunctionConstantValues*, init, "init")
  ARGENT_METHOD(void, setConstantValue, "setConstantValue:type:atIndex:", const void*, MTLDataType, NSUInteger)
};

struct MTLFunction : NSObject {};

struct MTLLibrary : NSObject {
  ARGENT_METHOD(MTLFunction*, newFunction, "newFunctionWithName:constantValues:error:", NSString*,
                MTLFunctionConstantValues*, NSError**)
};

struct MTLComputePipelineDescriptor : NSObject {
  ARGENT_CLASS(MTLComputePipelineDescriptor)
  ARGENT_CLASS_METHOD(MTLComputePipelineDescriptor*, alloc, "alloc")
  ARGENT_METHOD(MTLComputePipelineDescriptor*, init, "init")
  ARGENT_METHOD(void, setLabel, "setLabel:", NSString*)
  ARGENT_METHOD(void, setComputeFunction, "setComputeFunction:", MTLFunction*)
  ARGENT_METHOD(void, setThreadGroupSizeIsMultipleOfThreadExecutionWidth,
                "setThreadGroupSizeIsMultipleOfThreadExecutionWidth:", bool)
  ARGENT_METHOD(void, setBinaryArchives, "setBinaryArchives:", NSArray*)
};

struct MTLComputePipelineReflection : NSObject {};

struct MTLComputePipelineState : NSObject {
  ARGENT_METHOD(NSUInteger, threadExecutionWidth, "threadExecutionWidth")
  ARGENT_METHOD(NSUInteger, maxTotalThreadsPerThreadgroup, "maxTotalThreadsPerThreadgroup")
  ARGENT_METHOD(NSUInteger, staticThreadgroupMemoryLength, "staticThreadgroupMemoryLength")
};

struct MTLBinaryArchiveDescriptor : NSObject {
  ARGENT_CLASS(MTLBinaryArchiveDescriptor)
  ARGENT_CLASS_METHOD(MTLBinaryArchiveDescriptor*, alloc, "alloc")
  ARGENT_METHOD(MTLBinaryArchiveDescriptor*, init, "init")
  ARGENT_METHOD(void, setUrl, "setUrl:", NSURL*)
};

struct MTLBinaryArchive : NSObject {
  ARGENT_METHOD(bool, addComputePipelineFunctions,
                "addComputePipelineFunctionsWithDescriptor:error:", MTLComputePipelineDescriptor*, NSError**)
  ARGENT_METHOD(bool, serializeToURL, "serializeToURL:error:", NSURL*, NSError**)
};

// ---- memory

struct MTLBuffer : NSObject {
  ARGENT_METHOD(void, setLabel, "setLabel:", NSString*)
  ARGENT_METHOD(void*, contents, "contents")
};

struct MTLResidencySetDescriptor : NSObject {
  ARGENT_CLASS(MTLResidencySetDescriptor)
  ARGENT_CLASS_METHOD(MTLResidencySetDescriptor*, alloc, "alloc")
  ARGENT_METHOD(MTLResidencySetDescriptor*, init, "init")
};

struct MTLResidencySet : NSObject {
  ARGENT_METHOD(void, addAllocation, "addAllocation:", MTLBuffer*)
  ARGENT_METHOD(void, removeAllocation, "removeAllocation:", MTLBuffer*)
  ARGENT_METHOD(void, commit, "commit")
  ARGENT_METHOD(void, requestResidency, "requestResidency")
  ARGENT_METHOD(void, endResidency, "endResidency")
};

// ---- commands

struct MTLSharedEvent : NSObject {
  ARGENT_METHOD(bool, waitUntilSignaledValue, "waitUntilSignaledValue:timeoutMS:", uint64_t, uint64_t)
};

struct MTLComputeCommandEncoder : NSObject {
  ARGENT_METHOD(void, setLabel, "setLabel:", NSString*)
  ARGENT_METHOD(void, pushDebugGroup, "pushDebugGroup:", NSString*)
  ARGENT_METHOD(void, popDebugGroup, "popDebugGroup")
  ARGENT_METHOD(void, setComputePipelineState, "setComputePipelineState:", MTLComputePipelineState*)
  ARGENT_METHOD(void, setBuffer, "setBuffer:offset:atIndex:", MTLBuffer*, NSUInteger, NSUInteger)
  ARGENT_METHOD(void, setBytes, "setBytes:length:atIndex:", const void*, NSUInteger, NSUInteger)
  ARGENT_METHOD(void, setThreadgroupMemoryLength, "setThreadgroupMemoryLength:atIndex:", NSUInteger, NSUInteger)
  ARGENT_METHOD(void, memoryBarrierWithScope, "memoryBarrierWithScope:", MTLBarrierScope)
  ARGENT_METHOD(void, dispatchThreadgroups, "dispatchThreadgroups:threadsPerThreadgroup:", MTLSize, MTLSize)
  ARGENT_METHOD(void, endEncoding, "endEncoding")
};

struct MTLCommandBuffer : NSObject {
  ARGENT_METHOD(void, setLabel, "setLabel:", NSString*)
  ARGENT_METHOD(MTLComputeCommandEncoder*, computeCommandEncoder,
                "computeCommandEncoderWithDispatchType:", MTLDispatchType)
  ARGENT_METHOD(void, encodeSignalEvent, "encodeSignalEvent:value:", MTLSharedEvent*, uint64_t)
  ARGENT_METHOD(void, commit, "commit")
  ARGENT_METHOD(MTLCommandBufferStatus, status, "status")
  ARGENT_METHOD(NSError*, error, "error")
  ARGENT_METHOD(double, GPUStartTime, "GPUStartTime")
  ARGENT_METHOD(double, GPUEndTime, "GPUEndTime")
};

struct MTLCommandQueue : NSObject {
  ARGENT_METHOD(MTLCommandBuffer*, commandBuffer, "commandBuffer")
  ARGENT_METHOD(void, addResidencySet, "addResidencySet:", MTLResidencySet*)
};

struct MTLDevice : NSObject {
  ARGENT_METHOD(NSString*, name, "name")
  ARGENT_METHOD(bool, supportsFamily, "supportsFamily:", MTLGPUFamily)
  ARGENT_METHOD(bool, hasUnifiedMemory, "hasUnifiedMemory")
  ARGENT_METHOD(uint64_t, recommendedMaxWorkingSetSize, "recommendedMaxWorkingSetSize")
  ARGENT_METHOD(NSUInteger, maxBufferLength, "maxBufferLength")
  ARGENT_METHOD(NSUInteger, maxThreadgroupMemoryLength, "maxThreadgroupMemoryLength")
  ARGENT_METHOD(MTLCommandQueue*, newCommandQueue, "newCommandQueue")
  ARGENT_METHOD(MTLSharedEvent*, newSharedEvent, "newSharedEvent")
  ARGENT_METHOD(MTLBuffer*, newBufferWithLength, "newBufferWithLength:options:", NSUInteger, MTLResourceOptions)
  // The last argument is a block; always null here.
  ARGENT_METHOD(MTLBuffer*, newBufferWithBytesNoCopy,
                "newBufferWithBytesNoCopy:length:options:deallocator:", const void*, NSUInteger, MTLResourceOptions,
                void*)
  ARGENT_METHOD(MTLLibrary*, newLibraryWithSource, "newLibraryWithSource:options:error:", NSString*, MTLCompileOptions*,
                NSError**)
  ARGENT_METHOD(MTLLibrary*, newLibraryWithURL, "newLibraryWithURL:error:", NSURL*, NSError**)
  ARGENT_METHOD(MTLComputePipelineState*, newComputePipelineState,
                "newComputePipelineStateWithDescriptor:options:reflection:error:", MTLComputePipelineDescriptor*,
                MTLPipelineOption, MTLComputePipelineReflection**, NSError**)
  ARGENT_METHOD(MTLBinaryArchive*, newBinaryArchive,
                "newBinaryArchiveWithDescriptor:error:", MTLBinaryArchiveDescriptor*, NSError**)
  ARGENT_METHOD(MTLResidencySet*, newResidencySet, "newResidencySetWithDescriptor:error:", MTLResidencySetDescriptor*,
                NSError**)
};

extern "C" {
// A command-line program gets a device only when it links CoreGraphics as well (documentation of this function).
MTLDevice* MTLCreateSystemDefaultDevice();
}

}  // namespace argent::metal::apple
