import java.io.BufferedReader;
import java.io.File;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.hdfs.MiniDFSCluster.DataNodeProperties;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.SafeModeAction;
import org.apache.hadoop.hdfs.DistributedFileSystem;
import org.apache.hadoop.hdfs.protocol.HdfsConstants;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

/**
 * A name node, two data nodes, a resource manager and two node managers in one process, on loopback.
 *
 * Arguments: a folder for everything; MiB of memory of each node manager, or 0 for HDFS without YARN; the name node's
 * port, or 0 for any. Prints "ready" once the files of HADOOP_CONF_DIR are in the folder's conf/. Then each line of
 * standard input is an order, answered by "done"; the server ends with its standard input.
 */
public class HadoopServer {
  private static final List<String> CLIENT_KEYS = List.of(
      "fs.defaultFS", "yarn.resourcemanager.address", "yarn.resourcemanager.scheduler.address",
      "yarn.resourcemanager.webapp.address", "yarn.resourcemanager.resource-tracker.address",
      "yarn.resourcemanager.admin.address", "yarn.log-aggregation-enable", "yarn.nodemanager.remote-app-log-dir");

  public static void main(String[] arguments) throws Exception {
    File folder = new File(arguments[0]).getAbsoluteFile();
    int memory = Integer.parseInt(arguments[1]);
    int port = Integer.parseInt(arguments[2]);
    Configuration conf = new YarnConfiguration();
    conf.set("hdfs.minidfs.basedir", new File(folder, "dfs").getPath());
    conf.setInt("dfs.replication", 2);
    conf.setInt("dfs.heartbeat.interval", 1);
    conf.setInt("dfs.namenode.heartbeat.recheck-interval", 2000);
    conf.setInt("dfs.namenode.fs-limits.min-block-size", 0);
    MiniDFSCluster files =
        new MiniDFSCluster.Builder(conf).numDataNodes(2).nameNodePort(port).format(true).build();
    files.waitActive();
    conf.set("fs.defaultFS", files.getURI().toString());
    if (memory > 0) conf = startYarn(conf, memory);
    writeClientFiles(conf, new File(folder, "conf"));
    System.out.println("ready");
    obey(files);
    System.exit(0);
  }

  private static Configuration startYarn(Configuration conf, int memory) {
    conf.setInt("yarn.minicluster.yarn.nodemanager.resource.memory-mb", memory);
    conf.setInt("yarn.nodemanager.resource.cpu-vcores", 4);
    conf.setInt("yarn.scheduler.minimum-allocation-mb", 128);
    conf.setBoolean("yarn.minicluster.control-resource-monitoring", true);  // containers over their memory are killed
    conf.setBoolean("yarn.nodemanager.resource.memory.enforced", false);  // by the node manager, not by cgroups
    conf.setBoolean("yarn.nodemanager.vmem-check-enabled", false);
    conf.setBoolean("yarn.log-aggregation-enable", true);
    conf.setFloat("yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage", 99.9f);
    conf.set("yarn.scheduler.capacity.root.queues", "default,full");
    conf.set("yarn.scheduler.capacity.root.default.capacity", "99");
    conf.set("yarn.scheduler.capacity.root.full.capacity", "1");
    conf.set("yarn.scheduler.capacity.root.full.maximum-capacity", "1");  // has room for nothing
    conf.set("yarn.scheduler.capacity.maximum-am-resource-percent", "0.9");
    MiniYARNCluster yarn = new MiniYARNCluster("yarn", 1, 2, 1, 1);
    yarn.init(conf);
    yarn.start();
    return yarn.getConfig();
  }

  private static void writeClientFiles(Configuration conf, File folder) throws Exception {
    Configuration client = new Configuration(false);
    for (String key : CLIENT_KEYS) if (conf.get(key) != null) client.set(key, conf.get(key));
    folder.mkdirs();
    for (String name : List.of("core-site.xml", "yarn-site.xml"))
      try (OutputStream out = new FileOutputStream(new File(folder, name))) { client.writeXml(out); }
  }

  /** A folder that has room for one file. */
  private static void limitFiles(DistributedFileSystem files, Path folder) throws Exception {
    files.mkdirs(folder);
    files.setQuota(folder, 2, HdfsConstants.QUOTA_DONT_SET);
  }

  private static void obey(MiniDFSCluster files) throws Exception {
    DataNodeProperties stopped = null;
    BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
    for (String order = orders.readLine(); order != null; order = orders.readLine()) {
      switch (order) {
        case "stop data node" -> stopped = files.stopDataNode(0);
        case "start data node" -> { files.restartDataNode(stopped, true); files.waitActive(); }
        case "enter safe mode" -> files.getFileSystem().setSafeMode(SafeModeAction.ENTER);
        case "leave safe mode" -> files.getFileSystem().setSafeMode(SafeModeAction.LEAVE);
        case "limit files" -> limitFiles(files.getFileSystem(), new Path("/limited"));
        case "stop name node" -> files.shutdownNameNode(0);
        case "start name node" -> { files.restartNameNode(0, false); files.waitActive(); }
        default -> throw new IllegalArgumentException(order);
      }
      System.out.println("done");
    }
  }
}
