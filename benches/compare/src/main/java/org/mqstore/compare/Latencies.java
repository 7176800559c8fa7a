package org.mqstore.compare;

import com.google.gson.JsonObject;

/** Counts of durations in nanoseconds, in buckets whose width is at most 1/32 of their value. */
final class Latencies {
    private static final int STEPS = 32;
    private static final int STEP_BITS = 5;

    private final long[] counts = new long[STEPS * 64];
    private long total;
    private long max;

    void record(long nanos) {
        long value = Math.max(nanos, 0);
        counts[bucket(value)]++;
        total++;
        max = Math.max(max, value);
    }

    void add(Latencies other) {
        for (int i = 0; i < counts.length; i++) {
            counts[i] += other.counts[i];
        }
        total += other.total;
        max = Math.max(max, other.max);
    }

    JsonObject toJson() {
        JsonObject json = new JsonObject();
        json.addProperty("p50_ns", quantile(0.5));
        json.addProperty("p99_ns", quantile(0.99));
        json.addProperty("p999_ns", quantile(0.999));
        json.addProperty("p9999_ns", quantile(0.9999));
        json.addProperty("max_ns", max);
        return json;
    }

    private static int bucket(long value) {
        if (value < STEPS) {
            return (int) value;
        }
        int shift = 63 - Long.numberOfLeadingZeros(value) - STEP_BITS;
        return (shift + 1) * STEPS + (int) ((value >>> shift) - STEPS);
    }

    /** The upper end of the bucket that contains the quantile. */
    private long quantile(double part) {
        long wanted = (long) Math.ceil(part * total);
        long seen = 0;
        for (int i = 0; i < counts.length; i++) {
            seen += counts[i];
            if (seen >= wanted && counts[i] > 0) {
                int shift = i / STEPS - 1;
                long upper = shift < 0 ? i : ((long) (i % STEPS + STEPS + 1) << shift) - 1;
                return Math.min(upper, max);
            }
        }
        return max;
    }
}
