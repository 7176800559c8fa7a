package org.mqstore.hdfs;

import java.io.File;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/** Runs an HDFS below a folder, prints the port of its name node, and ends when the standard input ends. */
public final class Main {
    private Main() {}

    public static void main(String[] args) throws Exception {
        Configuration conf = new Configuration();
        conf.set("dfs.datanode.hostname", "127.0.0.1");
        // Only the user that started it may write outside of its own folders.
        conf.setBoolean("dfs.permissions.enabled", true);
        MiniDFSCluster cluster = new MiniDFSCluster.Builder(conf, new File(args[0])).numDataNodes(1).build();
        cluster.waitActive();
        System.out.println(cluster.getNameNodePort());
        System.out.flush();
        while (System.in.read() >= 0) {
            // Its end is what counts.
        }
        cluster.shutdown();
        System.exit(0);
    }
}
