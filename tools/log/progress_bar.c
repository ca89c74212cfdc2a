#include "tools/log/progress_bar.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>
#include "tools/files/text.h"

enum { LINE_ROOM = 1024, BAR_NARROWEST = 6, BAR_WIDEST = 30, BAR_FRAME = 3, MOST_COLUMNS = 500 };

static const double REDRAW_SECONDS = 0.1;

double progress_bar_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The values with which Hugging Face's programs switch their bars off. */
static bool bars_are_disabled(void)
{
    static const char *const on[] = {"1", "ON", "YES", "TRUE", NULL};
    const char *value = getenv("HF_HUB_DISABLE_PROGRESS_BARS");
    for (int i = 0; value && on[i]; i++)
        if (strcasecmp(value, on[i]) == 0) return true;
    return false;
}

void progress_bar_init(progress_bar *bar, FILE *stream)
{
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");
    bool smart = isatty(fileno(stream)) && !(term && strcmp(term, "dumb") == 0);
    *bar = (progress_bar){
        .stream = stream,
        .on = smart && !bars_are_disabled(),
        .colour = smart && !(no_color && *no_color),
    };
}

bool progress_bar_is_due(const progress_bar *bar)
{
    return !bar->drawn || progress_bar_now() - bar->drawn_at >= REDRAW_SECONDS;
}

/* Overwrites with spaces rather than with an escape code: any terminal knows them. */
void progress_bar_clear(progress_bar *bar)
{
    if (bar->drawn) fprintf(bar->stream, "\r%*s\r", bar->drawn, "");
    bar->drawn = 0;
}

static int terminal_width(const progress_bar *bar)
{
    struct winsize size;
    if (ioctl(fileno(bar->stream), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
    return size.ws_col < MOST_COLUMNS ? size.ws_col : MOST_COLUMNS;
}

/* "02:05", "1:02:05"; "--:--" where the time is not known. */
static void add_duration(text *t, double seconds)
{
    if (!(seconds >= 0 && seconds < 3600.0 * 10000)) {
        text_add(t, "--:--");
        return;
    }
    long whole = lround(seconds), hours = whole / 3600;
    if (hours) text_add(t, "%ld:", hours);
    text_add(t, "%02ld:%02ld", whole / 60 % 60, whole % 60);
}

/* "120/266 3.70 step/s ETA 00:39" */
static void add_counts(text *t, const progress_line *l)
{
    text_add(t, "%lld", (long long)l->done);
    if (l->total) text_add(t, "/%lld", (long long)l->total);
    if (l->seconds > 1)
        text_add(t, " %.2f s/%s", l->seconds, l->unit);
    else if (l->seconds > 0)
        text_add(t, " %.2f %s/s", 1 / l->seconds, l->unit);
    if (!l->total) return;
    text_add(t, " ETA ");
    add_duration(t, l->seconds > 0 ? (double)(l->total - l->done) * l->seconds : -1);
}

/* Columns of the two most important fields: the bar itself gives way to them. */
static int width_needed(const progress_line *l)
{
    int width = 0;
    for (int i = 0; i < l->field_count && i < 2; i++)
        width += 3 + (int)strlen(l->fields[l->importance[i]]);
    return width;
}

/* Adds " | field" for the fields that fit into `room` columns; returns the columns they take. */
static int add_fields(text *t, const progress_line *l, int room)
{
    bool chosen[PROGRESS_FIELDS] = {false};
    int used = 0;
    for (int i = 0; i < l->field_count; i++) {
        int f = l->importance[i], width = 3 + (int)strlen(l->fields[f]);
        if (!l->fields[f][0] || used + width > room) continue;
        chosen[f] = true;
        used += width;
    }
    for (int f = 0; f < l->field_count; f++)
        if (chosen[f]) text_add(t, " | %s", l->fields[f]);
    return used;
}

static void add_bar(text *t, const progress_bar *bar, int width, double share)
{
    int filled = (int)(share * width);
    text_add(t, "[%s", bar->colour ? "\033[32m" : "");
    for (int i = 0; i < width; i++) text_add(t, "%c", i < filled ? '=' : i == filled ? '>' : ' ');
    text_add(t, "%s] ", bar->colour ? "\033[0m" : "");
}

static double share_done(const progress_line *l)
{
    double share = l->total > 0 ? (double)l->done / (double)l->total : 0;
    return share < 0 ? 0 : share > 1 ? 1 : share;
}

/* Lays the line out in at most `width` columns; returns how many it has. */
static int lay_out(const progress_bar *bar, const progress_line *l, int width, text *line)
{
    char tail_data[LINE_ROOM];
    text tail = text_into(tail_data, sizeof tail_data);
    if (*l->label) text_add(line, "%.20s ", l->label);
    if (l->total) text_add(line, "%3d%% ", (int)(100 * share_done(l)));
    add_counts(&tail, l);

    int columns = (int)(line->used + tail.used), room = width - columns;
    bool with_bar = l->total && room >= BAR_FRAME + BAR_NARROWEST + width_needed(l);
    if (with_bar) room -= BAR_FRAME + BAR_NARROWEST;
    int fields = add_fields(&tail, l, room);
    columns += fields;
    if (with_bar) {
        int spare = room - fields, most = BAR_WIDEST - BAR_NARROWEST;
        int bar_width = BAR_NARROWEST + (spare < most ? spare : most);
        add_bar(line, bar, bar_width, share_done(l));
        columns += BAR_FRAME + bar_width;
    }
    text_add(line, "%s", tail_data);
    if (columns <= width) return columns;
    line->data[width] = '\0'; /* there is no bar then, so no colours: a byte is a column */
    return width;
}

void progress_bar_draw(progress_bar *bar, const progress_line *line)
{
    char data[2 * LINE_ROOM];
    text t = text_into(data, sizeof data);
    int width = terminal_width(bar) - 1; /* writing into the last column may wrap */
    int columns = lay_out(bar, line, width, &t);
    int before = bar->drawn < width ? bar->drawn : width;
    /* the cursor waits at the start, where the echo of Ctrl-C can't wrap the line */
    fprintf(bar->stream, "\r%s%*s\r", data, before > columns ? before - columns : 0, "");
    fflush(bar->stream);
    bar->drawn = before > columns ? before : columns;
    bar->drawn_at = progress_bar_now();
}
