package org.mqstore.interop;

import com.google.gson.JsonObject;
import java.io.BufferedWriter;
import java.io.IOException;
import java.io.OutputStreamWriter;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;

/**
 * The answers of the protocol: one JSON object on each line of the process's real standard output.
 *
 * <pre>
 *   {"id":7,"row":{...}}                      any number of rows, in the command's own order
 *   {"id":7,"ok":true,"result":{...}}         then exactly one end line
 *   {"id":7,"ok":false,"error":"...","trace":"..."}
 * </pre>
 */
final class Wire {
    private final BufferedWriter out;
    private long id;

    /** Takes standard output for the protocol and sends all other prints to standard error. */
    Wire() {
        PrintStream real = System.out;
        System.setOut(System.err);
        out = new BufferedWriter(new OutputStreamWriter(real, StandardCharsets.UTF_8), 1 << 16);
    }

    /** Begins the answer to the command of this number. */
    void begin(long commandId) {
        id = commandId;
    }

    /** Sends one row. It may wait in the buffer until {@link #flush} or the end line. */
    void row(JsonObject row) {
        JsonObject line = new JsonObject();
        line.addProperty("id", id);
        line.add("row", row);
        write(line);
    }

    /** Sends the end line of a command that worked. */
    void done(JsonObject result) {
        JsonObject line = new JsonObject();
        line.addProperty("id", id);
        line.addProperty("ok", true);
        line.add("result", result);
        write(line);
        flush();
    }

    /** Sends the end line of a command that failed. */
    void failed(Throwable cause) {
        StringWriter trace = new StringWriter();
        cause.printStackTrace(new PrintWriter(trace));
        JsonObject line = new JsonObject();
        line.addProperty("id", id);
        line.addProperty("ok", false);
        line.addProperty("error", String.valueOf(cause));
        line.addProperty("trace", trace.toString());
        write(line);
        flush();
    }

    /** Writes everything sent so far into the pipe. */
    void flush() {
        try {
            out.flush();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private void write(JsonObject line) {
        try {
            out.write(line.toString());
            out.write('\n');
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }
}
