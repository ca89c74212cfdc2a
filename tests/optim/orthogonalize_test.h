/* Newton-Schulz as it is published, in double. */
#ifndef MC_TESTS_ORTHOGONALIZE_TEST_H
#define MC_TESTS_ORTHOGONALIZE_TEST_H

#include <math.h>
#include <stdbool.h>

enum { MOST = 100 };
typedef double square[MOST][MOST];

/* c (m, n) = a (m, k) b (k, n), or b^T where it is given as (n, k). */
static inline void multiply(int m, int n, int k, square a, square b, bool transposed, square c)
{
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            c[i][j] = 0;
            for (int l = 0; l < k; l++) c[i][j] += a[i][l] * (transposed ? b[j][l] : b[l][j]);
        }
}

/* Of a tall x that of its transpose. */
static inline void orthogonalize(int rows, int columns, const double *x, double *y)
{
    static square w, gram, squared, moved;
    bool tall = rows > columns;
    int m = tall ? columns : rows, n = tall ? rows : columns;
    double norm = 0;
    for (int i = 0; i < rows * columns; i++) norm += x[i] * x[i];
    norm = fmax(sqrt(norm), 1e-7);
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) w[i][j] = x[tall ? j * columns + i : i * columns + j] / norm;
    for (int iteration = 0; iteration < 5; iteration++) {
        multiply(m, m, n, w, w, true, gram);
        multiply(m, m, m, gram, gram, false, squared);
        for (int i = 0; i < m; i++)
            for (int j = 0; j < m; j++) gram[i][j] = -4.775 * gram[i][j] + 2.0315 * squared[i][j];
        multiply(m, n, m, gram, w, false, moved);
        for (int i = 0; i < m; i++)
            for (int j = 0; j < n; j++) w[i][j] = 3.4445 * w[i][j] + moved[i][j];
    }
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) y[tall ? j * columns + i : i * columns + j] = w[i][j];
}

#endif
