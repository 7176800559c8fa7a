package org.mqstore.interop;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;
import org.apache.rocketmq.logging.ch.qos.logback.classic.Level;
import org.apache.rocketmq.logging.ch.qos.logback.classic.spi.ILoggingEvent;
import org.apache.rocketmq.logging.ch.qos.logback.classic.spi.IThrowableProxy;
import org.apache.rocketmq.logging.ch.qos.logback.core.UnsynchronizedAppenderBase;

/**
 * Keeps the lines that RocketMQ logs at WARN and ERROR, and the INFO lines that name the first file of recovery.
 *
 * <p>The tests ask for these lines after a load. A store that mqstore wrote must load with only healthy lines. If lines
 * differ only in their numbers, the first {@value #MOST_ALIKE} are kept. Logback creates this class from the
 * configuration file, so the lines are in static state.
 */
public final class LogCapture extends UnsynchronizedAppenderBase<ILoggingEvent> {
    private static final List<Line> LINES = new ArrayList<>();
    private static final Map<String, Integer> ALIKE = new HashMap<>();
    private static final Pattern NUMBER = Pattern.compile("\\d+");
    private static final int MOST_ALIKE = 100;

    private record Line(ThreadGroup group, JsonObject json) {
    }

    /** Created by logback. */
    public LogCapture() {
        setName("capture");
    }

    @Override
    protected void append(ILoggingEvent event) {
        String message = event.getFormattedMessage();
        if (!event.getLevel().isGreaterOrEqual(Level.WARN) && !message.startsWith("recover from this mapped file")) {
            return;
        }
        JsonObject line = new JsonObject();
        line.addProperty("level", event.getLevel().toString());
        line.addProperty("logger", event.getLoggerName());
        line.addProperty("thread", event.getThreadName());
        // The appender runs in the thread that logs.
        ThreadGroup group = Thread.currentThread().getThreadGroup();
        IThrowableProxy thrown = event.getThrowableProxy();
        String cause = thrown == null ? "" : " | " + thrown.getClassName() + ": " + thrown.getMessage();
        line.addProperty("message", message + cause);
        synchronized (LINES) {
            if (ALIKE.merge(NUMBER.matcher(message).replaceAll("#"), 1, Integer::sum) <= MOST_ALIKE) {
                LINES.add(new Line(group, line));
            }
        }
    }

    /** Returns the lines since the last call, oldest first, and forgets them. */
    static JsonArray drain() {
        return drain(null);
    }

    /**
     * Returns the lines that threads of a group logged since the last call, oldest first, and forgets all lines.
     *
     * @param group the threads of one store, or null for every thread
     */
    static JsonArray drain(ThreadGroup group) {
        JsonArray lines = new JsonArray();
        synchronized (LINES) {
            LINES.stream().filter(line -> group == null || line.group == group).forEach(line -> lines.add(line.json));
            LINES.clear();
            ALIKE.clear();
        }
        return lines;
    }
}
