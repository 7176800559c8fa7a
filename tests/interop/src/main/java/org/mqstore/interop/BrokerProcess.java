package org.mqstore.interop;

import java.lang.reflect.Field;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.BrokerStartup;
import org.apache.rocketmq.common.ServiceThread;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;

/**
 * A name server and a broker in one child process.
 *
 * <p>Prints {@code ready} and the process number when both listen. SIGTERM stops the broker cleanly by RocketMQ's own
 * shutdown hook. The name server lives until the process ends, so that the broker can unregister. The end of standard
 * input ends the process at once, so no broker outlives the test that started it.
 */
public final class BrokerProcess {
    private BrokerProcess() {
    }

    /**
     * Starts both.
     *
     * @param args the name server's port, or {@code none}, and the broker's properties file
     */
    public static void main(String[] args) throws Exception {
        if (!args[0].equals("none")) {
            startNameServer(Integer.parseInt(args[0]));
        }
        BrokerController broker = BrokerStartup.createBrokerController(new String[] {"-c", args[1]});
        BrokerStartup.start(broker);
        stopBusyThread(broker);
        System.out.println("ready " + ProcessHandle.current().pid());
        System.out.flush();
        while (System.in.read() >= 0) {
            // Standard input carries no commands. Only its end matters.
        }
        Runtime.getRuntime().halt(1);
    }

    /**
     * Stops the thread that stores the counts of transactions. It needs a whole processor, because it waits for its next
     * turn without a pause, and the tests of a machine with two of them would take much longer.
     */
    private static void stopBusyThread(BrokerController broker) throws ReflectiveOperationException {
        Field field = BrokerController.class.getDeclaredField("transactionMetricsFlushService");
        field.setAccessible(true);
        if (field.get(broker) instanceof ServiceThread thread) {
            thread.shutdown();
        }
    }

    private static void startNameServer(int port) throws Exception {
        NettyServerConfig listen = new NettyServerConfig();
        listen.setListenPort(port);
        listen.setBindAddress("127.0.0.1");
        NamesrvController namesrv = new NamesrvController(new NamesrvConfig(), listen);
        if (!namesrv.initialize()) {
            throw new IllegalStateException("the name server did not initialize");
        }
        namesrv.start();
    }
}
