/* The subcommands of `modelcenter`. One more is one line here and a file cmd_<name>.c that defines
 * `int cmd_<name>(int argc, char **argv)`: argv[0] is the subcommand's name; the return value is
 * the exit code, one of EXIT_OK, EXIT_RUN_FAILED, EXIT_USAGE and EXIT_INTERRUPTED (args.h). */
#ifndef MC_TOOLS_COMMANDS_H
#define MC_TOOLS_COMMANDS_H

/* clang-format off */
/*     name      summary */
#define MC_COMMANDS(X)                                                                             \
    X(finetune, "fine-tune a model on a task")                                                     \
    X(eval, "evaluate a fine-tuned model on a task")                                               \
    X(ask, "answer a yes-or-no question about a passage")                                          \
    X(pretrain, "train a language model on token files")                                           \
    X(tokenize, "show the tokens and ids of texts")                                                \
    X(tokenizer, "train a tokenizer on texts")                                                     \
    X(prepare, "turn texts into token files for pretraining")                                      \
    X(generate, "continue texts with a language model")                                            \
    X(predict, "write classes, numbers or texts for the rows of a table")                          \
    X(embed, "compute vectors of the texts of a table")                                            \
    X(plan, "predict memory, communication and time of a training step")                      \
    X(bench, "measure the collectives between ranks")                                              \
    X(convert, "write a model in another form: Hugging Face's, ModelCenter's, GGUF")               \
    X(info, "list what a file or folder of tensors holds")                                         \
    X(inspect, "show statistics of a model's parameters and activations")                          \
    X(download, "download a model into the Hugging Face cache")                                    \
    X(doctor, "report what works here, and what is missing")
/* clang-format on */

typedef struct command {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
} command;

#define MC_DECLARE_COMMAND(name, summary) int cmd_##name(int argc, char **argv);
MC_COMMANDS(MC_DECLARE_COMMAND)
#undef MC_DECLARE_COMMAND

#endif
