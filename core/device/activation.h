/* Activation functions, by name.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_DEVICE_ACTIVATION_H
#define MC_DEVICE_ACTIVATION_H

typedef enum mc_activation {
    MC_ACTIVATION_NONE = 0,
    MC_ACTIVATION_RELU,
    MC_ACTIVATION_GELU,     /* x/2 (1 + erf(x / sqrt 2)) */
    MC_ACTIVATION_GELU_NEW, /* x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))): GPT-2's form */
    MC_ACTIVATION_TANH,
    MC_ACTIVATION_SILU, /* x / (1 + e^-x), also known as swish */
} mc_activation;

#endif
